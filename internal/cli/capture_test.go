//go:build linux

package cli_test

import (
	"strings"
	"testing"
)

// TestShell_IsCapturedUnseen checks that a shell on a terminal is captured while it runs, again and again, and that
// neither the shell nor its jobs notice the pauses.
func TestShell_IsCapturedUnseen(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	base := strings.TrimSpace(d.run("snapshot", "head", sandbox))
	term := d.open("shell", "--capture", "quiet=10ms,max=50ms", "-e", "HOME=/nonexistent", sandbox)
	term.enter("PS1='at'' ease> '\r")
	term.see(prompt)
	got := term.command("for i in $(seq 40); do echo $i >captured; sleep 0.05; done; echo code-$?")
	got += term.command("sleep 1000 &")
	got += term.command("echo >captured-too; sleep 1; jobs")
	if !strings.Contains(got, "code-0") || !strings.Contains(got, "Running") || strings.Contains(got, "Stopped") {
		t.Errorf("on the terminal: %q", got)
	}
	d.eventually(`"cause":"auto"`, "log", sandbox, "--json")
	d.eventually("/captured-too\n", "diff", sandbox, base, "HEAD")
	term.foreground("exec cat")
	term.enter("typed\r")
	term.see("typed\r\ntyped\r\n")
	term.enter("\x03")
	term.see(prompt)
	term.enter("kill %1; exit 0\r")
	term.end(0)
	if n := strings.Count(d.run("log", sandbox, "--json"), `"cause":"auto"`); n < 2 {
		t.Errorf("%d automatic snapshots", n)
	}
}
