//go:build linux

package cli_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// history returns the IDs of a sandbox's snapshots, newest first.
func (d *desk) history() []string {
	d.t.Helper()
	var ids []string
	for line := range strings.Lines(d.run("log", sandbox, "--json")) {
		for _, part := range strings.Split(line, `"id":"`)[1:] {
			ids = append(ids, part[:12])
		}
	}
	return ids
}

// supervised starts a script of sh as a supervised command, without a client attached to it.
func (d *desk) supervised(script string, flags ...string) {
	d.t.Helper()
	d.run(append(append([]string{"run", "--in", sandbox, "--detach"}, flags...), "--", "sh", "-c", script)...)
}

// recorded waits until the patch from the first snapshot to HEAD contains want for a path.
func (d *desk) recorded(path, want string) {
	d.t.Helper()
	out := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		first := d.history()
		out = d.run("diff", sandbox, first[len(first)-1], "HEAD", "--patch", path)
		if strings.Contains(out, want) {
			return
		}
	}
	d.t.Fatalf("no snapshot has %q in %s: %s", want, path, out)
}

// python returns the path of Python on the host, which is the same in a sandbox from the host.
func python(t *testing.T) string {
	t.Helper()
	p, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: to map files")
	}
	return p
}

// TestCapture_CoversEveryWriter writes files in every way that a process can, and finds each change in the history.
func TestCapture_CoversEveryWriter(t *testing.T) {
	t.Parallel()

	t.Run("once and quiet", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.supervised("echo one >~/f; sleep 1000")
		d.recorded("", "+one")
		n := len(d.history())
		time.Sleep(time.Second)
		if got := len(d.history()); got != n {
			t.Errorf("nothing changed, and there are %d more snapshots", got-n)
		}
		d.run("exec", sandbox, "--", "sh", "-c", "sleep 0.3; true")
		if got := len(d.history()); got != n {
			t.Errorf("a command that changes nothing made %d snapshots", got-n)
		}
	})

	t.Run("every millisecond", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		p := python(t)
		d.supervised(p + ` -c '
import os, time
f = open(os.path.expanduser("~/f"), "w")
n = 0
while True:
    n += 1
    f.seek(0); f.write("n%08d\n" % n); f.flush(); time.sleep(0.001)
'`)
		// The writer never pauses, and snapshots are taken all the same.
		for n := range 3 {
			have := len(d.history())
			for deadline := time.Now().Add(patience); len(d.history()) == have; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no snapshot after %d", n)
				}
			}
		}
	})

	t.Run("without a pause", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.supervised(`while :; do echo x >~/f; mv ~/f ~/g; done`)
		for deadline := time.Now().Add(patience); len(d.history()) < 4; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no snapshots")
			}
		}
	})

	// The kernel reports only the first write to a page, and names the file by a path that may contain any bytes, and
	// that is invalid if the file was renamed.
	for name, flags := range map[string][]string{
		"through a mapping": nil,
		"through a mapping, without isolation": {"--driver", "copy", "--tier", "workspace", "--confine", "off",
			"--from", t.TempDir()}, // python3 may be in the home of the user
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, flags...)
			p := python(t)
			d.supervised(p + ` -c '
import mmap, os, time
for name in b"f\xff", b"g":
    open(name, "w").write("first   \n")
os.link(b"g", b"h")
maps = {n: mmap.mmap(os.open(name, os.O_RDWR), 0) for n, name in ((b"1", b"f\xff"), (b"2", b"g"))}
os.unlink(b"g")
for text in b"mapped ", b"mapnow ":
    time.sleep(5) # longer than what it takes to see the text before, where many tests run
    for n, m in maps.items(): m[0:8] = text + n
time.sleep(1000)
'`)
			for _, want := range []string{"+first", "+mapped 1", "+mapped 2", "+mapnow 1", "+mapnow 2"} {
				d.recorded("", want)
			}
		})
	}

	t.Run("while a snapshot is taken", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		// Each line is written after the previous one, so a snapshot has the first n of them for some n, and the last
		// has all.
		d.supervised(`for i in $(seq 300); do echo line$i >>~/f; : >~/done.$i; done; sleep 1000`)
		d.recorded("", "+line300\n")
		for _, id := range d.history() {
			out := d.run("exec", d.fork(id), "--", "sh", "-c",
				`n=$(cat ~/f 2>/dev/null | wc -l); m=$(ls ~ | grep -c ^done.); echo $((n-m))`)
			if got := strings.TrimSpace(out); got != "0" && got != "1" {
				t.Errorf("snapshot %s is torn: %s", id, got)
			}
		}
	})

	t.Run("a file that nobody may read", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.supervised(`umask 777; echo secret >~/f; sleep 1000`)
		d.recorded("", "+secret")
	})

	t.Run("only at the end", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.supervised("echo one >~/f; sleep 1; echo two >~/f; sleep 1", "--capture", "off")
		d.eventually(`"exit":{`, "status", sandbox, "--json")
		if got := len(d.history()); got != 2 {
			t.Errorf("%d snapshots, want 2", got)
		}
		d.recorded("", "+two")
	})
}

// fork creates a sandbox from a snapshot.
func (d *desk) fork(ref string) string {
	d.t.Helper()
	name := "fork-" + ref
	d.run("fork", sandbox, name, "--at", ref)
	d.t.Cleanup(func() { d.try("rm", "--force", name) })
	return name
}

func TestIdleSandbox_TakesNoSnapshots(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.supervised("echo last >~/f; exec sleep 1000")
	d.recorded("", "+last") // nothing changes any more
	n := len(d.history())
	time.Sleep(3 * time.Second)
	if got := len(d.history()); got != n {
		t.Errorf("%d snapshots without changes", got-n)
	}
}

// TestRewind_UnderTerminal rewinds a command from outside while clients are attached to it.
func TestRewind_UnderTerminal(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	term := d.open("run", "--in", sandbox, "--", "sh")
	term.enter("PS1='at'' ease> '\r")
	term.see(prompt)
	term.command("echo one >~/f")
	d.recorded("", "+one")
	good := d.history()[0]
	term.command("echo two >~/f; rm -f ~/gone")
	d.recorded("", "+two")

	// A read-only client sees the output, and cannot type.
	second := d.open("attach", sandbox, "--read-only")
	second.see("echo two")
	second.enter("echo typed by the second\r")
	term.enter("echo typed by the fi''rst\r")
	second.see("typed by the first")
	term.see("typed by the first")

	d.run("rewind", sandbox, good)
	term.see("restarting the command")
	second.see("restarting the command")
	term.enter("PS1='at'' ease> '\r")
	term.see(prompt)
	if got := term.command("cat ~/f; stty size"); !strings.Contains(got, "one\r\n30 100\r\n") {
		t.Errorf("after the rewind: %q", got)
	}
	if strings.Contains(second.so(), "typed by the second") && strings.Contains(term.so(), "typed by the second") {
		t.Error("a read-only client has typed")
	}

	// The detach keys leave the command running.
	second.enter("\x10\x11")
	second.see("detached")
	second.end(0)
	term.enter("\x10\x11")
	term.see("detached")
	term.end(0)

	// The command still runs, with the size of the new terminal.
	term = d.open("attach", sandbox)
	term.enter("\r")
	term.see(prompt)
	term.enter("echo ba''ck\r")
	term.see("back\r\n")
	term.resize(40, 90)
	term.enter(`until [ "$(stty size)" = "40 90" ]; do :; done; echo si""ze` + "\r")
	term.see("size\r\n")

	// The terminal is closed, and the command continues.
	term.master.Close()
	term.gone()
	if out := d.run("status", sandbox, "--json"); strings.Contains(out, `"exit":{`) {
		t.Fatalf("the command exited with the terminal: %s\n%s", out, d.run("log", sandbox))
	}
	term = d.open("attach", sandbox)
	term.enter("echo still he''re\r")
	term.see("still here")

	// A killed daemon ends neither the command nor the client.
	d.killDaemon()
	term.see("attaching again")
	term.enter("echo and he''re\r")
	term.see("and here")
	term.enter("exit 5\r")
	term.end(5)
	if _, err := d.try("attach", sandbox); err == nil {
		t.Error("attach succeeded after the command exited")
	}
}

// TestTerminal_ClosedDuringOutput closes a terminal while a command prints to it: from a supervised command the CLI
// detaches, and another command gets SIGHUP. Neither gets SIGPIPE, as it would from a closed pipe.
func TestTerminal_ClosedDuringOutput(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	term := d.open("run", "--in", sandbox, "--", "sh", "-c", "trap 'echo broken >~/f' PIPE; while :; do echo on; done")
	term.see("on")
	term.master.Close()
	term.gone()
	term = d.open("attach", sandbox)
	term.see("on")
	d.run("stop", sandbox)
	term.gone()
	d.quiet()

	// The shell must write its signal to a file: its trap hides what killed it.
	term = d.open("exec", "-it", sandbox, "--", "sh", "-c",
		"trap 'echo broken >>~/f; exit' PIPE; trap 'echo hung up >>~/g; exit' HUP; while :; do echo on; done")
	term.see("on")
	term.master.Close()
	term.gone()
	d.quiet()
	if out := d.run("exec", sandbox, "--", "sh", "-c", "cd; ls f 2>&1; cat g"); !strings.Contains(out, "hung up") ||
		strings.HasPrefix(out, "f\n") {
		t.Errorf("after the windows were closed: %q", out)
	}
}

// so returns everything that the terminal has shown.
func (term *terminal) so() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.shown
}

// TestCapture_ContinuesAfterDaemonKill kills the daemon while a supervised command runs.
func TestCapture_ContinuesAfterDaemonKill(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.supervised(`n=0; while :; do n=$((n+1)); echo $n >~/f; sleep 0.1; done`)
	for range 5 {
		d.recorded("", "+")
		before := d.history()[0]
		d.killDaemon()
		for deadline := time.Now().Add(patience); d.history()[0] == before; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("no snapshot was taken after the daemon was killed")
			}
		}
	}
	if out := d.run("system", "verify", sandbox); strings.Contains(out, "damage") {
		t.Error(out)
	}
	d.run("stop", sandbox)
	d.eventually(`"exit":{`, "status", sandbox, "--json") // which is recorded after the stop
}

// TestRewind_SurvivesDaemonKill kills the daemon while a rewind waits for the command to exit. No torn snapshot and
// no process without a supervisor may remain.
func TestRewind_SurvivesDaemonKill(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.supervised(
		`trap "" TERM; mkdir ~/.torn; cd ~/.torn; n=0; while :; do n=$((n+1)); echo $n >t; mv t a; echo $n >t; mv t b; done`)
	d.recorded("", "+")
	first := d.history()
	rewound := make(chan struct{})
	go func() {
		defer close(rewound)
		_, _ = d.try("rewind", sandbox, first[len(first)-1])
	}()
	d.eventually("before rewinding to", "log", sandbox) // the command was signalled to exit
	time.Sleep(300 * time.Millisecond)
	d.killDaemon()
	<-rewound
	d.run("snapshot", "create", sandbox, "-m", "after it")
	for _, id := range d.history() {
		out := d.run("exec", d.fork(id), "--", "sh", "-c",
			`cd ~/.torn 2>/dev/null; echo $(($(cat a 2>/dev/null || echo 0) - $(cat b 2>/dev/null || echo 0)))`)
		if got := strings.TrimSpace(out); got != "0" && got != "1" {
			t.Errorf("snapshot %s is torn: %s", id, got)
		}
	}
	d.run("exec", sandbox, "--", "true")
}

// TestFork_StartsNoCommand checks that a fork has the files of a sandbox, but not its supervised command.
func TestFork_StartsNoCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.supervised("echo one >~/f; exec sleep 1000", "--restart", "always")
	d.recorded("", "+one")
	name := d.fork(d.history()[0])
	d.run("exec", name, "--", "true")
	if out := d.run("status", name, "--json"); strings.Contains(out, `"run":{`) {
		t.Error(out)
	}
}
