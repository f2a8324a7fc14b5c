// Package hook generates the configuration by which an agent's harness marks each tool call in the history of its
// sandbox, and installs it where the harness looks. The hooks run inside a sandbox, where coppice may be missing:
// they speak the line protocol of /run/coppice.sock with node or python3, and never block a tool call. Only cli
// imports it.
package hook

import (
	_ "embed" // the scripts
	"encoding/json"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// socket is the path of a sandbox's own socket, inside. A hook that contains it is Coppice's.
const socket = "/run/coppice.sock"

var (
	//go:embed mark.js
	markJS string
	//go:embed mark.py
	markPy string
	//go:embed opencode.js
	opencode string
)

// Harness is a program that runs agents, with the form of its hooks.
type Harness struct {
	Name  string
	Title string
	// Project and User are the path of the file below a project's directory and below the home.
	Project, User string
	// Note is a caveat for the user, or "".
	Note string

	whole  string  // the file, if it holds only Coppice's hooks
	events []event // otherwise the hooks to merge into it
	first  []member
	bare   bool // an event has a list of commands, not of groups of commands
	unit   int  // unit of timeouts: 1 for seconds, or 1000 for milliseconds
}

// event is an event for which the harness runs hooks.
type event struct{ name, phase string }

// Harnesses returns the harnesses with documented hooks, by name. For Cursor only the hooks after an action are
// used: the meaning of an empty answer to a hook before an action is not documented, and a hook must not grant a
// permission by accident.
func Harnesses() []Harness {
	return []Harness{
		{
			Name: "claude-code", Title: "Claude Code", Project: ".claude/settings.json", User: ".claude/settings.json",
			events: []event{{"PreToolUse", "begin"}, {"PostToolUse", "end"}, {"PostToolUseFailure", "end"}}, unit: 1,
		},
		{
			Name: "codex", Title: "Codex CLI", Project: ".codex/hooks.json", User: ".codex/hooks.json",
			Note:   "Codex asks once to trust the hooks: /hooks",
			events: []event{{"PreToolUse", "begin"}, {"PostToolUse", "end"}}, unit: 1,
		},
		{
			Name: "cursor", Title: "Cursor", Project: ".cursor/hooks.json", User: ".cursor/hooks.json",
			Note:   "marks completed steps only",
			events: []event{{"afterShellExecution", ""}, {"afterFileEdit", ""}, {"afterMCPExecution", ""}},
			first:  []member{{"version", json.RawMessage("1")}}, bare: true,
		},
		{
			Name: "gemini-cli", Title: "Gemini CLI", Project: ".gemini/settings.json", User: ".gemini/settings.json",
			events: []event{{"BeforeTool", "begin"}, {"AfterTool", "end"}}, unit: 1000,
		},
		{
			Name: "opencode", Title: "opencode", Project: ".opencode/plugins/coppice.js",
			User:  ".config/opencode/plugins/coppice.js",
			whole: opencode,
		},
	}
}

// Find returns a harness by its name.
func Find(name string) (Harness, error) {
	var names []string
	for _, h := range Harnesses() {
		if h.Name == name {
			return h, nil
		}
		names = append(names, h.Name)
	}
	return Harness{}, fault.New(fault.NotFound, "unknown agent %q", name).
		WithHint("use one of %s; or mark steps manually: coppice snapshot mark NAME MESSAGE", strings.Join(names, ", "))
}

// Config returns the content of a new file.
func (h Harness) Config() ([]byte, error) { return h.Merge(nil) }

// command returns the shell command that sets a mark. Outside a sandbox it does nothing; it prints nothing and
// always succeeds.
func command(phase string) string {
	args := "' 2>/dev/null"
	if phase != "" {
		args = "' " + phase + " 2>/dev/null"
	}
	return "test ! -S " + socket + " || node -e '" + markJS + args + " || python3 -c '" + markPy + args + " || true"
}

// handler returns the list entry for an event of this harness.
func (h Harness) handler(e event) (json.RawMessage, error) {
	type cmd struct {
		Type    string `json:"type,omitempty"`
		Command string `json:"command"`
		Timeout int    `json:"timeout,omitempty"`
	}
	if h.bare {
		return encode(cmd{Command: command(e.phase)})
	}
	return encode(struct {
		Matcher string `json:"matcher"`
		Hooks   []cmd  `json:"hooks"`
	}{"*", []cmd{{"command", command(e.phase), timeout * h.unit}}})
}

// timeout is the time after which a harness aborts a hook, in seconds. Coppice's hooks end after two.
const timeout = 5
