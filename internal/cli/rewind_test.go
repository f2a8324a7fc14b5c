//go:build linux

package cli_test

import (
	"testing"
)

// rewind rewinds the sandbox in place, while its processes run.
func (d *desk) rewind(ref string) {
	d.t.Helper()
	d.run("rewind", "--in-place", sandbox, ref)
}

// TestRewind_UnderTmux detaches from a shell under tmux, attaches to it again, and rewinds it with and without a
// restart.
func TestRewind_UnderTmux(t *testing.T) {
	t.Parallel()
	needs(t, "tmux")
	d := newDesk(t)
	term := d.open("run", "--in", sandbox, "--", "tmux", "-L", "desk", "-f", "/dev/null",
		"new-session", "-s", "work", "sh", ";", "set", "-g", "assume-paste-time", "0")
	term.see("[work] 0:sh*")
	term.enter("echo precious >~/f; echo wro''te\r")
	term.see("wrote")
	d.recorded("", "+precious")
	good := d.history()[0]

	// Another window does the damage while no client is attached.
	term.enter("\x02c")
	term.see("1:bash*")
	term.enter("sleep 0.5; rm ~/f; echo da''maged\r\x10\x11")
	term.see("detached")
	term.end(0)
	term = d.open("attach", sandbox)
	term.see("damaged")
	d.run("rewind", sandbox, good)
	term.see("restarting the command")
	term.see("[work] 0:sh*")
	term.enter("here=sa''me; cat ~/f\r")
	term.see("precious")

	// In place, the same shell continues.
	term.enter("rm ~/f; echo da''maged again\r")
	term.see("damaged again")
	d.rewind(good)
	term.enter("echo the $here: $(cat ~/f)\r")
	term.see("the same: precious")
	term.enter("exit\r")
	term.end(0)
}
