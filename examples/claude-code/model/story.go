package model

import (
	"context"
	"fmt"
	"strings"
)

// A Stage is the environment in which the story runs.
type Stage struct {
	// Coppice runs coppice on the host, and returns its output.
	Coppice func(ctx context.Context, args ...string) (string, error)
	Sandbox string   // the agent's sandbox
	Claude  string   // the agent's own program
	Doomed  []string // files that the agent deletes, including its own program
}

// The turns of Story, by what they do.
const (
	Writes = iota
	Works
	Destroys
	Looks
	Ends
)

// Story returns the story of an agent that deletes its own program, and does not know that its sandbox is rewound. It
// works in its own directory, and writes plan.md and numbers there.
func Story(st Stage) []Turn {
	good := ""
	destroy, look := st.destroy(), st.look()
	destroy.Before = func(ctx context.Context) error {
		id, err := st.Coppice(ctx, "snapshot", "create", st.Sandbox, "-m", "all is well")
		good = strings.TrimSpace(id)
		return err
	}
	look.Before = func(ctx context.Context) error {
		_, err := st.Coppice(ctx, "rewind", "--in-place", st.Sandbox, good)
		return err
	}
	return []Turn{
		Writes: st.write(), Works: st.work(), Destroys: destroy, Looks: look,
		Ends: {Say: "Everything that I deleted is back, and I noticed nothing."},
	}
}

// Tag is the name that the agent of SelfStory gives to the snapshot that it rewinds to.
const Tag = "all-is-well"

// SelfStory returns the story of an agent that deletes its own program and rewinds its sandbox itself, with the MCP
// server "coppice" in the sandbox. It uses nothing of st but the paths.
func SelfStory(st Stage) []Turn {
	return []Turn{
		st.write(), st.work(),
		{Say: "Before I tidy up, I name this state.", Tool: "mcp__coppice__commit", Want: "changed",
			Input: map[string]any{"message": "all is well"}},
		{Say: "It gets a tag.", Tool: "mcp__coppice__tag", Want: Tag, Input: map[string]any{"name": Tag}},
		st.destroy(),
		{Say: "That was too much. I go back.", Tool: "mcp__coppice__checkout", Want: "rewritten",
			Input: map[string]any{"node": Tag}},
		st.look(),
		{Say: "Everything that I deleted is back: I rewound my own sandbox."},
	}
}

func (st Stage) write() Turn {
	return Turn{
		Say: "I write the plan.", Tool: "Write", Want: "plan.md",
		Input: map[string]any{"file_path": "plan.md", "content": "Count to one thousand.\n"},
	}
}

func (st Stage) work() Turn {
	return Turn{
		Say: "I carry it out.", Tool: "Bash", Want: "1000 numbers",
		Input: map[string]any{"command": "seq 1000 >numbers && echo Done. >>plan.md && wc -l numbers",
			"description": "Count"},
	}
}

func (st Stage) destroy() Turn {
	return Turn{
		Say: "I tidy up, and go too far.", Tool: "Bash", Want: "it is gone",
		Input: map[string]any{
			"command": fmt.Sprintf("rm -rf numbers plan.md %s; test -e %s || echo it is gone",
				strings.Join(st.Doomed, " "), st.Claude),
			"description": "Tidy up",
		},
	}
}

func (st Stage) look() Turn {
	return Turn{
		Say: "I look at what is there.", Tool: "Bash", Want: "Claude Code",
		Input: map[string]any{"command": st.Claude + " --version && cat plan.md && tail -n 1 numbers",
			"description": "Look"},
	}
}
