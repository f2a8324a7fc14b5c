//go:build linux

package cli_test

import (
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestClientKill_HangsUpCommand checks that a command notices that its client was killed, as with ssh: its terminal
// is hung up, or its stdin reaches EOF.
func TestClientKill_HangsUpCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t)

	term := d.open("exec", "-it", sandbox, "--", "cat")
	term.enter("one\r")
	term.see("one\r\none\r\n")
	term.signal(syscall.SIGKILL)
	term.gone()
	d.quiet()

	term = d.open("exec", "-t", sandbox, "--", "sh", "-c",
		"trap 'echo hung up >~/told; exit' HUP; echo ready; while :; do sleep 0.01; done")
	term.see("ready")
	term.signal(syscall.SIGKILL)
	d.eventually("hung up", "exec", sandbox, "--", "sh", "-c", "cat ~/told")

	term = d.shell()
	term.foreground("exec sleep 1000")
	term.master.Close() // the user closes the window
	term.gone()
	d.quiet()

	cmd := exec.Command("coppice", "exec", "-i", sandbox, "--", "sh", "-c", "echo ready; cat >~/copy; echo whole >>~/copy")
	cmd.Env = d.env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(in, "some text\n"); err != nil {
		t.Error(err)
	}
	d.eventually("some text", "exec", sandbox, "--", "sh", "-c", "cat ~/copy")
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	d.eventually("some text\nwhole\n", "exec", sandbox, "--", "sh", "-c", "cat ~/copy")
	d.quiet()
}

// TestDaemonKill_ClientReattaches kills the daemon: the client attaches again, to the same terminal.
func TestDaemonKill_ClientReattaches(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	term := d.shell()
	term.foreground("exec sleep 1000")
	d.killDaemon()
	term.see("attaching again\r\n")
	term.enter("\x03")
	term.see(prompt)
	if got := term.command("echo code-$?; stty size"); !strings.Contains(got, "code-130") ||
		!strings.Contains(got, "30 100") {
		t.Errorf("%q", got)
	}
	term.enter("exit 6\r")
	term.end(6)
}
