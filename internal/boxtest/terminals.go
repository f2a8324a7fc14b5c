//go:build linux && (amd64 || arm64)

package boxtest

import (
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

var terminals = []check{
	{"a terminal has its size and is resized", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", "trap 'stty size; exit' WINCH; stty size; echo ready; while :; do sleep 0.01; done"},
				TTY: true, Stdin: true, Size: &wire.Size{Cols: 101, Rows: 33}})
		if got := WaitOutput(t, s, "ready"); !strings.Contains(got, "33 101") {
			t.Errorf("%q", got)
		}
		Send(t, s, wire.FrameResize, wire.Size{Cols: 77, Rows: 22})
		if r := Collect(s); !strings.Contains(r.Stdout, "22 77") {
			t.Errorf("%+v", r)
		}
	}},
	{"a terminal is the controlling one, of the sandbox's own", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		r := b.Do(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", "tty; echo to-tty > /dev/tty; test -w $(tty) && echo writable; echo $TERM"}, TTY: true})
		for _, want := range []string{"/dev/pts/", "to-tty", "writable", "xterm-256color"} {
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("%q is not in %q", want, r.Stdout)
			}
		}
		if r.Stderr != "" {
			t.Errorf("stderr %q", r.Stderr)
		}
	}},
	{"job control", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-i"}, TTY: true, Stdin: true, Env: []string{"PS1=> ", "ENV="}})
		WaitOutput(t, s, "> ")
		Send(t, s, wire.FrameStdin, []byte(inForeground))
		WaitOutput(t, s, "begun")
		Send(t, s, wire.FrameStdin, []byte{3})
		Send(t, s, wire.FrameStdin, []byte("echo code-$?\n"))
		WaitOutput(t, s, "code-130")
		Send(t, s, wire.FrameStdin, []byte(inForeground))
		WaitOutput(t, s, "begun")
		Send(t, s, wire.FrameSignal, wire.Signal{Name: "INT"})
		b.procs(t, 1) // in tier gvisor the signal is typed, which discards earlier input
		Send(t, s, wire.FrameStdin, []byte("echo code-$?\n"))
		WaitOutput(t, s, "code-130")
		Send(t, s, wire.FrameStdin, []byte("exit 5\n"))
		if r := Collect(s); r.Exit.Code != 5 {
			t.Errorf("%+v", r)
		}
	}},
	{"the end of input on a terminal", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"cat"}, TTY: true, Stdin: true})
		WaitStarted(t, s)
		Send(t, s, wire.FrameStdin, []byte("line\n"))
		Send(t, s, wire.FrameStdinEOF, []byte{})
		if r := Collect(s); r.Exit.Code != 0 || strings.Count(r.Stdout, "line") != 2 {
			t.Errorf("%+v", r)
		}
	}},
	{"a hang-up reaches a terminal's session", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "trap 'exit 9' HUP; echo ready; while :; do sleep 0.01; done"},
				TTY: true})
		WaitOutput(t, s, "ready")
		Send(t, s, wire.FrameHangup, []byte{})
		if r := Collect(s); r.Exit.Code != 9 {
			t.Errorf("%+v", r)
		}
	}},
	{"a hang-up ends the input of a command without a terminal", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "trap 'exit 9' HUP; cat; exit 3"}, Stdin: true})
		WaitStarted(t, s)
		Send(t, s, wire.FrameStdin, []byte("all of it\n"))
		Send(t, s, wire.FrameHangup, []byte{})
		if r := Collect(s); r.Exit.Code != 3 || r.Stdout != "all of it\n" {
			t.Errorf("%+v", r)
		}
	}},
	{"a session that ends hangs nothing up", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"cat"}, TTY: true, Stdin: true})
		id := WaitStarted(t, s).Exec
		s.Close()
		s, err := b.Reattach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		Send(t, s, wire.FrameStdin, []byte("still here\n"))
		Send(t, s, wire.FrameStdinEOF, []byte{})
		if r := Collect(s); r.Exit.Code != 0 || strings.Count(r.Stdout, "still here") != 2 {
			t.Errorf("%+v", r)
		}
	}},
	{"a shell and its job are frozen unseen", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t,
			wire.ExecRequest{Cmd: []string{"bash", "--norc", "-i"}, TTY: true, Stdin: true, Env: []string{"PS1=> "}})
		WaitOutput(t, s, "> ")
		Send(t, s, wire.FrameStdin, []byte("echo be''gun; sleep 1; echo slept-$?\n"))
		WaitOutput(t, s, "begun")
		for range 20 {
			f, err := b.Freeze(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if f.Procs() != 2 {
				t.Logf("%d processes", f.Procs())
			}
			if err := f.Thaw(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if got := WaitOutput(t, s, "slept-0"); strings.Contains(got, "Stopped") {
			t.Errorf("the shell noticed: %q", got)
		}
		Send(t, s, wire.FrameStdin, []byte("exit\n"))
		Collect(s)
	}},
}

// inForeground is a line for a shell with job control. A child of such a shell takes the terminal before it executes a
// program, so the program that prints "begun" has it. The shell itself could print it before.
const inForeground = "sh -c 'echo be\"\"gun; exec sleep 1000'\n"

// procs waits until the box has that many processes.
func (b *Box) procs(t *testing.T, want int) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		n, err := b.Procs(t.Context())
		switch {
		case err != nil:
			t.Fatal(err)
		case n == want:
			return
		case time.Since(start) > patience:
			t.Fatalf("%d processes, not %d", n, want)
		}
	}
}
