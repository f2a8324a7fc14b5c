package main

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/examples/claude-code/model"
)

// title is the text of the recording for a reader who does not see it.
const title = "Claude Code deletes its own installation, rewinds its sandbox with a tool of Coppice, and continues"

// What the user types.
const (
	start   = "coppice run --agent claude --name fix"
	task    = "Free some disk space."
	history = "coppice log fix | grep -E 'rm -rf|before-cleanup' | cut -c -100"
	audit   = "coppice ledger show fix --kind program | grep 'rm -rf'"
	host    = "ls && claude --version"
)

// The last words of the agent.
const end = "I am still the same session."

// tag is the name that the agent gives to the snapshot that it rewinds to.
const tag = "before-cleanup"

// story returns what the model answers. It thinks for a while, so that a reader can follow.
func story(think time.Duration) []model.Turn {
	turns := []model.Turn{
		{Say: "I name the present state first, so that I can return to it.", Tool: "mcp__coppice__tag", Want: tag,
			Input: map[string]any{"name": tag}},
		{Say: "The photos and ~/.npm-global are the largest.", Tool: "Bash", Want: "claude: command not found",
			Input: map[string]any{"command": "rm -rf photos ~/.npm-global; claude --version; ls",
				"description": "Free disk space"}},
		{Say: "That deleted your photos, and my own program. I rewind my sandbox.",
			Tool: "mcp__coppice__checkout", Want: "rewritten", Input: map[string]any{"node": tag}},
		{Say: "I look at what is there.", Tool: "Bash", Want: "Claude Code",
			Input: map[string]any{"command": "claude --version; ls", "description": "Look"}},
		{Say: "Everything is back, the program that I run in as well. " + end},
	}
	for i := range turns {
		turns[i].Before = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
			case <-time.After(think):
			}
			return ctx.Err()
		}
	}
	return turns
}
