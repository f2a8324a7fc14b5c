//go:build linux

package cli_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client"
)

// warmDesk is a desk whose sandbox is in tier gvisor.
func warmDesk(t *testing.T) *desk {
	t.Helper()
	if !static {
		t.Skip("needs plain-build: a kernel is started in a root with the static binary alone")
	}
	return newDesk(t, "--tier", "gvisor")
}

// terminals returns the IDs of the commands with a terminal to which a client may attach.
func (d *desk) terminals(name string) (ids []string) {
	d.t.Helper()
	c := client.New(client.Options{Socket: filepath.Join(d.dir, "daemon.sock")})
	all, err := c.Execs(d.t.Context(), name)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, x := range all {
		if x.Kept && x.TTY {
			ids = append(ids, x.ID)
		}
	}
	return ids
}

// back attaches to a command.
func (d *desk) back(args ...string) *terminal {
	d.t.Helper()
	return d.open(append([]string{"attach"}, args...)...)
}

// TestMemory_ResumesShell resumes a shell from memory with its variables and its job, in the sandbox itself and in a
// fork. An attached client is notified, and can attach again.
func TestMemory_ResumesShell(t *testing.T) {
	t.Parallel()
	d := warmDesk(t)
	was := d.shell()
	was.command("word=kept")
	was.foreground("exec cat")
	warm := strings.TrimSpace(d.run("snapshot", "create", sandbox, "--memory", "-m", "warm"))
	was.enter("one\r")
	was.see("one\r\none\r\n")

	// A fork does not affect the client attached to the parent, and has no attached client.
	d.run("fork", sandbox, "copy", "--memory")
	t.Cleanup(func() { d.try("rm", "--force", "copy") })
	was.enter("two\r")
	was.see("two\r\ntwo\r\n")
	ids := d.terminals("copy")
	if len(ids) != 1 {
		t.Fatalf("the fork has terminals %q", ids)
	}
	if got := d.terminals(sandbox); got != nil {
		t.Errorf("terminals without a client: %q", got)
	}
	if _, err := d.try("attach", sandbox, ids[0]); err == nil {
		t.Error("a second client attached")
	}
	copied := d.back("copy", ids[0])
	copied.goesOn(44, 133)

	// The parent is rewound: its client exits with a message that explains how to attach again.
	told := d.run("rewind", sandbox, warm)
	was.see("the sandbox was rewound to another snapshot, where this command continues from memory: coppice attach box " +
		ids[0] + "\r\n")
	was.end(137)
	if got := d.terminals(sandbox); len(got) != 1 || got[0] != ids[0] {
		t.Fatalf("rewind printed %q; terminals are %q, want %q", told, got, ids)
	}
	again := d.back(sandbox, ids[0])
	again.goesOn(22, 77)
	copied.enter("echo $word-$((1+1))\r")
	copied.see("kept-2")

	// Several clients may be attached, and the command continues without them. A client that detaches prints how to
	// attach again.
	beside := d.open("attach", sandbox, ids[0], "--read-only")
	again.enter("echo seen-$((2+3))\r")
	beside.see("seen-5")
	beside.enter("\x10\x11")
	beside.see("attach again: coppice attach box " + ids[0] + "; ")
	beside.end(0)
	again.enter("\x10\x11")
	again.see("detached")
	again.end(0)
	again = d.back(sandbox, ids[0])
	again.enter("echo $word-$((3+4))\r")
	again.see("kept-7")

	// The client is detached in the same way by a second rewind, although it had attached.
	d.run("rewind", sandbox, warm)
	again.see("continues from memory: coppice attach box " + ids[0])
	again.end(137)
	again = d.back(sandbox, ids[0])
	again.goesOn(30, 90)
	again.enter("exit 7\r")
	again.end(7)
	copied.enter("exit 8\r")
	copied.end(8)
	for _, args := range [][]string{{"attach", sandbox, ids[0]}, {"attach", sandbox, "x0123456789"},
		{"attach", "nobody", ids[0]}} {
		if _, err := d.try(args...); err == nil {
			t.Errorf("coppice %q", args)
		}
	}
	d.run("system", "verify")
}

// goesOn checks that the shell of TestMemory_ResumesShell has resumed: with cat in the foreground, which Ctrl-C
// interrupts, its variable, the size of the attached terminal, and its jobs.
func (term *terminal) goesOn(rows, cols uint16) {
	term.t.Helper()
	term.resize(rows, cols)
	term.enter("again\r")
	term.see("again\r\nagain\r\n")
	term.enter("\x03")
	term.see(prompt)
	if got := term.command("echo code-$? $word"); !strings.Contains(got, "code-130 kept") {
		term.t.Errorf("after Ctrl-C: %q", got)
	}
	term.sized(rows, cols)
	term.resize(rows+3, cols+5)
	term.sized(rows+3, cols+5)
	// The job starts no program: gVisor's execve(2) drops stop signals that arrive before it returns
	// (kernel.ThreadGroup.endGroupStopLocked), unlike Linux.
	term.foreground("while :; do :; done")
	term.enter("\x1a")
	term.see("Stopped")
	term.see(prompt)
	term.command("bg")
	if got := term.command("jobs"); !strings.Contains(got, "Running") {
		term.t.Errorf("after Ctrl-Z and bg: %q", got)
	}
	if got := term.command("kill %1; wait %1; echo code-$?"); !strings.Contains(got, "code-143") {
		term.t.Errorf("background job: %q", got)
	}
}

// sized waits until the terminal of the shell has a size.
func (term *terminal) sized(rows, cols uint16) {
	term.t.Helper()
	term.enter(fmt.Sprintf("until [ \"$(stty size)\" = \"%d %d\" ]; do :; done; echo si''zed\r", rows, cols))
	term.see("sized")
	term.see(prompt)
}

// TestMemory_ResumesTmux resumes tmux with its windows, for a client that attaches to its terminal again.
func TestMemory_ResumesTmux(t *testing.T) {
	t.Parallel()
	needs(t, "tmux")
	d := warmDesk(t)
	was := d.shell()
	const tmux = "tmux -L desk -f /dev/null "
	was.enter(tmux + `new-session -s work -n one sh \; set -g assume-paste-time 0` + "\r")
	was.see("[work] 0:one*")
	was.enter("word=first; echo $word$((40+2))\r")
	was.see("first42")
	was.enter("\x02c")
	was.see("0:one- 1:") // followed by the name of the user's shell
	warm := strings.TrimSpace(d.run("snapshot", "create", sandbox, "--memory", "-m", "warm"))
	was.enter("\x02&")
	was.see("kill-window")
	was.enter("y")
	was.see("0:one*")
	id := regexp.MustCompile(`x[0-9a-f]{10}`).FindString(d.run("ledger", "show", sandbox, "--kind", "exec"))
	d.run("rewind", sandbox, warm)
	was.see("continues from memory: coppice attach box " + id)
	was.end(137)

	again := d.back(sandbox, id)
	again.resize(20, 80)
	again.see("0:one- 1:")
	again.enter("\x02p")
	again.see("0:one* 1:")
	again.enter("echo again-$word$((40+3))\r")
	again.see("again-first43")
	again.leavesTmux("work")
	if got := again.command(tmux + "list-windows"); !strings.Contains(got, "0: one") || !strings.Contains(got, "1: ") {
		t.Errorf("%q", got)
	}
	again.command(tmux + "kill-server")
	again.enter("exit 0\r")
	again.end(0)
}
