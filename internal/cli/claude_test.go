//go:build linux

package cli_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	script "github.com/coppice-dev/coppice/examples/claude-code/model"
)

// agent is Claude Code in a sandbox, with a scripted model that plays the story of the example.
type agent struct {
	*desk
	install string   // directory of its installation
	home    string   // home of its user, in the sandbox
	command []string // the command that runs it
	server  *script.Server
	good    string // the snapshot before the deletion, or its tag
}

// prompted is the prompt.
const prompted = "Count to one thousand."

// newAgent prepares an agent whose sandbox has the given --self, and that plays the story which tell returns for a stage
// where the installation and the paths in more are deleted.
func newAgent(t *testing.T, self string, tell func(*agent, script.Stage) []script.Turn, more ...string) *agent {
	t.Helper()
	install := claudeCode(t)
	// The model listens at 127.0.0.1, so the sandbox must share the host's network. Its port is any free one.
	a := &agent{install: install, desk: newDesk(t, "--net", "host", "--self", self)}
	a.home = strings.TrimSpace(a.run("exec", sandbox, "--", "sh", "-c", "echo $HOME"))
	work, config := filepath.Join(a.home, "work"), filepath.Join(a.home, "config")
	a.run("exec", sandbox, "--", "mkdir", work, config)
	a.run("exec", sandbox, "--", "sh", "-c",
		fmt.Sprintf(
			`echo '{"hasCompletedOnboarding":true,"theme":"dark","projects":{%q:{"hasTrustDialogAccepted":true}}}' >%s/.claude.json`, work, config))

	a.server = script.New(tell(a, script.Stage{
		Sandbox: sandbox,
		Claude:  filepath.Join(install, claudeProgram),
		Doomed:  append([]string{install}, more...),
		Coppice: func(_ context.Context, args ...string) (string, error) {
			out, err := a.try(args...)
			if args[0] == "snapshot" {
				a.good = strings.TrimSpace(out)
			}
			return out, err
		},
	}))
	srv := httptest.NewServer(a.server)
	t.Cleanup(srv.Close)

	a.command = []string{
		"run", "--in", sandbox, "--workdir", work,
		"-e", "CLAUDE_CONFIG_DIR=" + config, "-e", "ANTHROPIC_BASE_URL=" + srv.URL, "-e", "ANTHROPIC_AUTH_TOKEN=none",
		"-e", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "-e", "DISABLE_AUTOUPDATER=1",
		"--", filepath.Join(install, claudeProgram), "--allowedTools", "Bash,Write,mcp__coppice",
	}
	return a
}

// rewound is the story of an agent whose sandbox is rewound from outside. before is called before each turn.
func rewound(before func(turn int)) func(*agent, script.Stage) []script.Turn {
	return func(a *agent, st script.Stage) []script.Turn {
		story := script.Story(st)
		for i, turn := range story {
			story[i].Before = func(ctx context.Context) error {
				before(i)
				if turn.Before == nil {
					return nil
				}
				if err := a.captured(); err != nil {
					return err
				}
				return turn.Before(ctx)
			}
		}
		return story
	}
}

// captured waits until the history has an automatic snapshot.
func (a *agent) captured() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if out, err := a.try("log", sandbox); err == nil && strings.Contains(out, "  auto, ") {
			return nil
		}
	}
	return errors.New("no automatic snapshot was taken")
}

// played verifies the result of the story: every turn was played, the history has the written file and the deletion,
// and everything is restored.
func (a *agent) played() {
	a.t.Helper()
	if err := a.server.Err(); err != nil {
		a.t.Error(err)
	}
	ids := a.history()
	plan := filepath.Join(a.home, "work/plan.md")
	if out := a.run("diff", sandbox, ids[len(ids)-1], a.good, "--patch",
		plan); !strings.Contains(out, "+"+prompted+"\n+Done.\n") {
		a.t.Errorf("the plan is not in the history: %s", out)
	}
	deleted := false
	for _, id := range ids {
		out := a.run("diff", sandbox, a.good, id)
		deleted = deleted || strings.Contains(out, "- "+plan[1:]+"\n") && strings.Contains(out, "- "+a.install[1:]+"/\n")
	}
	if !deleted {
		a.t.Errorf("the deletion is not in the history: %s", a.run("log", sandbox))
	}
	if out := a.run("system", "verify", sandbox); strings.Contains(out, "damage") {
		a.t.Error(out)
	}
	digest := fmt.Sprintf("cd %s && find . -type f -print0 | sort -z | xargs -0 sha256sum", a.install)
	want, err := exec.Command("sh", "-c", digest).Output()
	if err != nil {
		a.t.Fatal(err)
	}
	if got := a.run("exec", sandbox, "--", "sh", "-c", digest); got != string(want) {
		a.t.Errorf("the installation is\n%s, want\n%s", got, want)
	}
}

// TestClaudeCode lets the real Claude Code delete its own installation, and rewind its own sandbox by a tool of the MCP
// server in it. Its session continues.
func TestClaudeCode(t *testing.T) {
	t.Parallel()
	var more []string
	if os.Getuid() == 0 {
		more = append(more, "/usr/bin")
	}
	a := newAgent(t, "rewind", func(_ *agent, st script.Stage) []script.Turn { return script.SelfStory(st) }, more...)
	a.good = script.Tag
	program := filepath.Join(a.home, "coppice")
	a.run("cp", filepath.Join(os.Getenv("COPPICE_EXEC_PATH"), "coppice"), sandbox+":"+program)
	out := a.run(append(a.command,
		"--mcp-config", fmt.Sprintf(`{"mcpServers":{"coppice":{"command":%q,"args":["mcp"]}}}`, program),
		"--print", prompted)...)
	if want := "I rewound my own sandbox"; !strings.Contains(out, want) {
		t.Errorf("output %q, missing %q", out, want)
	}
	a.played()
}

// TestClaudeCode_AtTerminal runs Claude Code at a terminal that is detached and attached again while it works. Its
// sandbox is rewound in place from outside, and the session knows nothing of it.
func TestClaudeCode_AtTerminal(t *testing.T) {
	t.Parallel()
	working, back := make(chan struct{}), make(chan struct{})
	a := newAgent(t, "read", rewound(func(turn int) {
		if turn == script.Destroys {
			close(working)
			<-back
		}
	}))
	term := a.open(a.command...)
	term.see("shortcuts")
	term.enter(prompted)
	term.press("\r", working)
	term.enter("\x10\x11")
	term.see("detached")
	term.end(0)

	term = a.open("attach", sandbox)
	close(back)
	// It redraws only what changed, and everything when the size changes.
	for rows, deadline := uint16(40), time.Now().Add(patience); !strings.Contains(term.so(), "noticed"); rows ^= 1 {
		if time.Now().After(deadline) {
			t.Fatal("the story did not end")
		}
		term.resize(rows, 100)
		time.Sleep(500 * time.Millisecond)
	}
	term.press("\x03", term.over) // it exits at two in quick succession
	term.end(0)
	a.played()
}

// press sends a key repeatedly until a condition holds: a program may take the first for a part of pasted text, or
// ask for confirmation.
func (term *terminal) press(key string, until <-chan struct{}) {
	term.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		term.enter(key)
		select {
		case <-until:
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
	term.t.Fatalf("%q had no effect", key)
}
