//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// begun waits for a program with that command line and returns it.
func begun(t *testing.T, b *boxtest.Box, line string) wire.StartedProgram {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for after := uint64(0); ; {
		p, err := b.Programs(ctx, after, after)
		if err != nil {
			t.Fatalf("waiting for %q: %v", line, err)
		}
		for _, e := range p.Events {
			if e.Began != nil && strings.Join(e.Began.Args, " ") == line {
				return *e.Began
			}
		}
		after = p.Next
	}
}

// TestGvisorRecordsProgramsOfACopy has a command start programs from a child process, before an image is taken and in
// the copy.
func TestGvisorRecordsProgramsOfACopy(t *testing.T) {
	t.Parallel()
	trace := func(c *plan.Config) { c.Trace = true }
	b := gvisorTier.Start(t, trace)
	s := b.Open(t,
		wire.ExecRequest{ID: "outer", Cmd: []string{"sh", "-c", "(while read n; do /bin/true $n; echo $n is done; done); :"},
			Stdin: true, Keep: true})
	boxtest.WaitStarted(t, s)
	boxtest.Send(t, s, wire.FrameStdin, []byte("one\n"))
	boxtest.WaitOutput(t, s, "one is done\n")
	if p := begun(t, b, "/bin/true one"); p.Exec != "outer" || p.Parent == 0 || p.Lost {
		t.Errorf("%+v", p)
	}
	image := save(t, b)
	c := copyOf(t, b, image, "fork", trace)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if _, err := c.Rekey(ctx, box.Rekey{Seed: make([]byte, 32)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(ctx); err != nil {
		t.Fatal(err)
	}
	z := reattached(t, c, "outer")
	boxtest.Send(t, z, wire.FrameStdin, []byte("two\n"))
	boxtest.WaitOutput(t, z, "two is done\n")
	r := c.Sh(t, "/bin/true three")
	boxtest.Send(t, z, wire.FrameStdinEOF, nil)
	if p := begun(t, c, "/bin/true two"); p.ID != 1 || p.Exec != "outer" || p.Parent != 0 || p.Lost {
		t.Errorf("in the copy: %+v", p)
	}
	if p := begun(t, c, "/bin/true three"); p.Exec != r.Started.Exec {
		t.Errorf("in the copy: %+v", p)
	}
	// Events in the original do not appear in the copy.
	boxtest.Send(t, s, wire.FrameStdin, []byte("four\n"))
	boxtest.WaitOutput(t, s, "four is done\n")
	if p := begun(t, b, "/bin/true four"); p.Exec != "outer" {
		t.Errorf("%+v", p)
	}
	evs, err := c.ProgramsNow(ctx, 0, 0)
	if err != nil ||
		slices.ContainsFunc(evs.Events,
			func(e wire.ProgramEvent) bool { return e.Began != nil && slices.Contains(e.Began.Args, "four") }) {
		t.Errorf("%+v, %v", evs, err)
	}
}

// TestGvisorRecordsProgramsPastAHostileParent has a command start programs in ways that hide their exits from init.
func TestGvisorRecordsProgramsPastAHostileParent(t *testing.T) {
	t.Parallel()
	b := gvisorTier.Start(t, func(c *plan.Config) { c.Trace = true })
	if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
		t.Skip("needs python3: to make system calls")
	}
	r := b.Do(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-c", `
import os, ctypes, signal, threading
libc = ctypes.CDLL(None)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0: os.execv("/bin/sh", ["sh", "-c", "exit 5 # ignored"])
try: os.wait()
except ChildProcessError: pass
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
p = os.fork()
if p == 0:
    libc.ptrace(0, 0, 0, 0)
    os.execv("/bin/sh", ["sh", "-c", "exit 6 # traced"])
while True:
    _, status = os.waitpid(p, 0)
    if not os.WIFSTOPPED(status): break
    libc.ptrace(7, p, 0, 0)
p = os.fork()
if p == 0:
    fd = os.open("/bin/true", os.O_RDONLY)
    other = os.open("/bin/false", os.O_RDONLY)
    threading.Thread(target=threading.Event().wait).start()
    os.execve(fd, ["by-shared"], {})
os.waitpid(p, 0)
p = os.fork()
if p == 0:
    try: os.execv("/nowhere/at/all", ["in-vain"])
    except OSError: os._exit(7)
os.waitpid(p, 0)
`}})
	if r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	evs, err := b.ProgramsNow(t.Context(), 0, 0)
	if err != nil || evs.Dropped != 0 {
		t.Fatalf("%+v, %v", evs, err)
	}
	ends := map[uint64]*wire.EndedProgram{}
	for _, e := range evs.Events {
		if e.Ended != nil {
			ends[e.Ended.ID] = e.Ended
		}
	}
	want := map[string]int{"sh -c exit 5 # ignored": 5, "sh -c exit 6 # traced": 6, "by-shared": 0}
	for _, e := range evs.Events {
		if e.Began == nil {
			continue
		}
		line := strings.Join(e.Began.Args, " ")
		code, known := want[line]
		if end := ends[e.Began.ID]; known &&
			(end == nil || end.Unknown || end.Code != code || e.Began.Exec != r.Started.Exec) {
			t.Errorf("%+v, end %+v", e.Began, end)
		}
		// Another thread could have replaced the file by now.
		if line == "by-shared" && !strings.HasPrefix(e.Began.Exe, "/dev/fd/") {
			t.Errorf("%+v", e.Began)
		}
		if line == "in-vain" {
			t.Errorf("recorded a program that did not start: %+v", e.Began)
		}
		delete(want, line)
	}
	if len(want) > 0 {
		t.Errorf("not recorded: %v", want)
	}
}

// BenchmarkGvisorExecRecorded measures what recording programs costs a command in tier gvisor.
func BenchmarkGvisorExecRecorded(b *testing.B) { execRecorded(b, gvisorTier) }

func BenchmarkGvisorPrograms(b *testing.B) { programsRecorded(b, gvisorTier) }
