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

// The turns of the story, by what they do.
const (
	Writes = iota
	Works
	Destroys
	GoesOn
	Ends
)

// Story returns the story of an agent that deletes its own program. It works in its own directory, and
// writes plan.md and numbers there.
func Story(st Stage) []Turn {
	good := ""
	return []Turn{
		Writes: {
			Say: "I write the plan.", Tool: "Write", Want: "plan.md",
			Input: map[string]any{"file_path": "plan.md", "content": "Count to one thousand.\n"},
		},
		Works: {
			Say: "I carry it out.", Tool: "Bash", Want: "1000 numbers",
			Input: map[string]any{"command": "seq 1000 >numbers && echo Done. >>plan.md && wc -l numbers",
				"description": "Count"},
		},
		Destroys: {
			Say: "I tidy up, and go too far.", Tool: "Bash", Want: "it is gone",
			Input: map[string]any{
				"command": fmt.Sprintf("rm -rf numbers plan.md %s; test -e %s || echo it is gone",
					strings.Join(st.Doomed, " "), st.Claude),
				"description": "Tidy up",
			},
			Before: func(ctx context.Context) error {
				id, err := st.Coppice(ctx, "snapshot", "create", st.Sandbox, "-m", "all is well")
				good = strings.TrimSpace(id)
				return err
			},
		},
		GoesOn: {
			Say: "I look at what is there.", Tool: "Bash", Want: "Claude Code",
			Input: map[string]any{"command": st.Claude + " --version && cat plan.md && tail -n 1 numbers",
				"description": "Look"},
			Before: func(ctx context.Context) error {
				_, err := st.Coppice(ctx, "rewind", "--in-place", st.Sandbox, good)
				return err
			},
		},
		Ends: {Say: "All that I deleted is back, and I have noticed nothing."},
	}
}
