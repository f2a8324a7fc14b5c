//go:build linux

package cli_test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prompt is the shell's prompt after desk.shell.
const prompt = "at ease> "

// shell opens a login shell with a known prompt. Its HOME does not exist, so that it reads no startup files: those in
// the copy of the host may wait for a lock file that a process of the host held at the time of the copy, and that
// nothing in the sandbox removes. "pyenv init" waits for a minute.
func (d *desk) shell() *terminal {
	d.t.Helper()
	term := d.open("shell", "-e", "HOME=/nonexistent", sandbox)
	term.enter("PS1='at'' ease> '\r")
	term.see(prompt)
	return term
}

// command types a line and waits for the next prompt. The returned output includes the echo of the line.
func (term *terminal) command(line string) string {
	term.t.Helper()
	term.enter(line + "\r")
	return term.see(prompt)
}

// foreground starts a script that runs until it is killed, and returns when it is in the foreground.
func (term *terminal) foreground(script string) {
	term.t.Helper()
	term.enter("sh -c 'echo be$((1-1))gun; " + script + "'\r")
	term.see("be0gun")
}

func TestShell_IgnoresHostStartupFiles(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("exec", sandbox, "--", "sh", "-c", "echo 'sleep 1000' >~/.bash_profile")
	term := d.shell()
	term.enter("exit 0\r")
	term.end(0)
}

func TestShell_HasTerminal(t *testing.T) {
	t.Parallel()
	term := newDesk(t).shell()

	if got := term.command("tty; echo $TERM"); !strings.Contains(got, "/dev/pts/") ||
		!strings.Contains(got, "xterm-256color") {
		t.Errorf("%q", got)
	}
	if got := term.command("stty size"); !strings.Contains(got, "\r30 100\r") {
		t.Errorf("size: %q", got)
	}
	term.resize(44, 133)
	term.command(`until [ "$(stty size)" = "44 133" ]; do :; done`)

	// Signals from the keyboard reach the foreground job, and not the shell.
	term.foreground("exec sleep 1000")
	term.enter("\x03")
	term.see(prompt)
	if got := term.command("echo code-$?"); !strings.Contains(got, "code-130") {
		t.Errorf("after Ctrl-C: %q", got)
	}
	term.foreground("exec sleep 1000")
	term.enter("\x1a")
	term.see("Stopped")
	term.see(prompt)
	term.command("bg")
	if got := term.command("jobs"); !strings.Contains(got, "Running") {
		t.Errorf("after Ctrl-Z and bg: %q", got)
	}
	if got := term.command("kill %1; wait %1; echo code-$?"); !strings.Contains(got, "code-143") {
		t.Errorf("background job: %q", got)
	}
	term.foreground("exec cat")
	term.enter("\x1a")
	term.see("Stopped")
	term.see(prompt)
	term.enter("fg\r")
	term.see("exec cat'")
	term.enter("again\r")
	term.see("again\r\nagain\r\n")
	term.enter("\x03")
	term.see(prompt)
	if got := term.command("echo code-$?; jobs"); !strings.Contains(got, "code-130") || strings.Contains(got, "[1]") {
		t.Errorf("after fg and Ctrl-C: %q", got)
	}

	// The client exits with the shell's exit code.
	term.command("(exit 7)")
	term.enter("\x04")
	term.end(7)
}

func TestTerminal_IsTransparent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	term := d.open("exec", "-it", sandbox, "--", "sh", "-c",
		`stty raw -echo; printf '\033[31mred\033[0m\r\nready\r\n'; head -c 4 | od -An -tx1`)
	if got := term.see("ready"); !strings.Contains(got, "\x1b[31mred\x1b[0m\r\n") {
		t.Errorf("%q", got)
	}
	term.enter("\x03\x1a\x04\xff")
	term.see("03 1a 04 ff")
	term.end(0)

	term = d.open("exec", "-it", sandbox, "--", "sh", "-c",
		"trap 'stty size; exit 5' WINCH; echo ready; while :; do sleep 0.01; done")
	term.see("ready")
	term.resize(22, 77)
	term.see("22 77")
	term.end(5)
}

func TestVim(t *testing.T) {
	t.Parallel()
	needs(t, "vim")
	d := newDesk(t)
	term := d.shell()
	term.enter("vim -N -u NONE -i NONE letter\r")
	term.see(`"letter" [New`)
	term.enter("i")
	term.see("-- INSERT --")
	term.enter("Dear Sir,\rgoodbye.")
	term.see("goodbye.")
	term.enter("\x1b")
	term.enter(":wq\r")
	term.see(prompt)
	if got := term.command("cat letter"); !strings.Contains(got, "Dear Sir,\r\ngoodbye.\r\n") {
		t.Errorf("%q", got)
	}
	term.enter("exit\r")
	term.end(0)
	if got := d.run("exec", sandbox, "--", "sh", "-c", "cat ~/letter"); got != "Dear Sir,\ngoodbye.\n" {
		t.Errorf("after the shell exited: %q", got)
	}
	if got := d.run("snapshot", "show", sandbox, "HEAD"); !strings.Contains(got, "/letter\n") {
		t.Errorf("snapshot show: %s", got)
	}
}

// leavesTmux detaches from a session of tmux, and waits for the shell's prompt.
func (term *terminal) leavesTmux(session string) {
	term.t.Helper()
	term.enter("\x02d")
	term.see("[detached (from session " + session + ")]")
	term.see(prompt)
}

func TestTmux(t *testing.T) {
	t.Parallel()
	needs(t, "tmux")
	term := newDesk(t).shell()
	const tmux = "tmux -L desk -f /dev/null "
	// Otherwise tmux takes keys that arrive this fast for a paste.
	term.enter(tmux + `new-session -s work sh \; set -g assume-paste-time 0` + "\r")
	term.see("[work] 0:sh*")
	term.enter("echo first$((40+2))\r")
	term.see("first42")
	term.enter("\x02c")
	term.see("1:bash*")
	term.enter("\x02\"echo second$((40+3)) $TMUX_PANE\r")
	term.see("second43 %2")
	term.leavesTmux("work")
	if got := term.command(tmux + "list-windows"); !strings.Contains(got, "0: sh") || !strings.Contains(got, "(2 panes)") {
		t.Errorf("%q", got)
	}
	term.enter(tmux + "attach\r")
	term.see("[work]")
	term.enter("\x02d")
	term.see(prompt)
	term.command(tmux + "kill-server")
	if got := term.command(tmux + "list-windows; echo code-$?"); !strings.Contains(got, "code-1") {
		t.Errorf("%q", got)
	}
	term.enter("exit 0\r")
	term.end(0)
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("needs %s: %v", program, err)
	}
}

// TestTerminal_RestoresModes checks that the terminal has its old modes after any exit of the command; term.end
// checks the modes.
func TestTerminal_RestoresModes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)

	term := d.open("exec", "-it", sandbox, "--", "sh", "-c", "kill -KILL $$")
	term.end(137)
	term = d.open("exec", "-it", sandbox, "--", "no-such-program")
	term.end(127)
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		term = d.open("exec", "-it", sandbox, "--", "sh", "-c", "echo ready; exec sleep 1000")
		term.see("ready")
		term.signal(sig)
		term.end(code)
	}
	term = d.shell()
	term.foreground("exec sleep 1000")
	term.signal(syscall.SIGHUP)
	term.end(129)

	// Repeated SIGTERM ends a client whose command ignores it. The command loses its terminal.
	term = d.open("exec", "-it", sandbox, "--", "sh", "-c",
		`trap "echo he''eds not" TERM; echo ready; while :; do sleep 0.01; done`)
	term.see("ready")
	for insisting := true; insisting; {
		term.signal(syscall.SIGTERM)
		select {
		case <-term.over:
			insisting = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	term.end(125)
	d.quiet()
}
