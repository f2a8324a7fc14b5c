//go:build linux && (amd64 || arm64)

package box_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
)

// continues is a program in Python that has a timer continue it (SIGCONT) when it is stopped, and counts in the file
// beat, after its pid. With an argument it stops itself after each number, so that it looks as if it had never run.
const continues = `
import ctypes, os, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGCONT, lambda *_: None) # the kernel sends no ignored signal of a timer again
event = ctypes.create_string_buffer(struct.pack('=QiiQ', 0, signal.SIGCONT, 0, 0), 64) # SIGEV_SIGNAL
timer = ctypes.c_int()
times = struct.pack('=qqqq', 0, 50000000, 0, 50000000)
create, settime = (107, 110) if os.uname().machine == 'aarch64' else (222, 223)
if libc.syscall(create, 1, event, ctypes.byref(timer)): sys.exit(os.strerror(ctypes.get_errno()))
n = 0
while True:
    n += 1
    with open('beat.new', 'w') as f: f.write('%d %d' % (os.getpid(), n))
    os.rename('beat.new', 'beat')
    if libc.syscall(settime, timer.value, 0, times, None): sys.exit(os.strerror(ctypes.get_errno()))
    if len(sys.argv) > 1: os.kill(os.getpid(), signal.SIGSTOP)
    else: time.sleep(0.001)`

// TestHeld_NoticesProcessesThatContinue checks that a freeze by SIGSTOP holds, and that it is noticed if a process runs
// meanwhile, also if it has stopped again.
func TestHeld_NoticesProcessesThatContinue(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make a timer")
	}
	for name, hides := range map[string][]string{"and runs on": nil, "and stops again": {"hide"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := (boxtest.Tier{Config: locked}).Start(t)
			if r := b.Sh(t, "sleep 1000 >/dev/null 2>&1 &"); r.Exit.Code != 0 {
				t.Fatalf("%+v", r)
			}
			f := freeze(t, b)
			for range 2 {
				if held, err := f.Held(t.Context()); err != nil || !held || f.Procs() != 1 {
					t.Errorf("a process that sleeps: %v, %v, %d processes", held, err, f.Procs())
				}
			}
			thaw(t, f)

			s := b.Open(t, wire.ExecRequest{Cmd: append([]string{"python3", "-c", continues}, hides...)})
			defer s.Close()
			file := filepath.Join(b.Config.Spec.Bind, "beat")
			f = whileFrozen(t, b, file)
			ran(t, f, "a process that a timer continues")
			before := beat(t, file)
			resume(t, before)
			for end := time.Now().Add(2 * time.Minute); beat(t, file) == before; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("a signal continues no process")
				}
			}
			ran(t, f, "a process that has been stopped again")
			thaw(t, f)
		})
	}
}

// ran checks that the freeze has noticed that a process ran.
func ran(t *testing.T, f *box.Frozen, what string) {
	t.Helper()
	if held, err := f.Held(t.Context()); err != nil || held {
		t.Errorf("%s: held %v, %v", what, held, err)
	}
}

func freeze(t *testing.T, b *boxtest.Box) *box.Frozen {
	t.Helper()
	f, err := b.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func thaw(t *testing.T, f *box.Frozen) {
	t.Helper()
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
}

// beat returns the content of a file that continues writes.
func beat(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// resume continues the program that wrote a beat, as its timer does.
func resume(t *testing.T, beat string) {
	t.Helper()
	pid, _, _ := strings.Cut(beat, " ")
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(n, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// whileFrozen freezes a sandbox until its timer has continued the program. A SIGSTOP discards a SIGCONT of the timer
// that is pending, and then the kernel does not set the timer again. A program that was stopped before the freeze
// stays so after it: it is continued for the next try.
func whileFrozen(t *testing.T, b *boxtest.Box, file string) *box.Frozen {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if beat(t, file) == "" {
			continue // not started yet
		}
		f := freeze(t, b)
		before := beat(t, file)
		for wait := time.Now().Add(5 * time.Second); time.Now().Before(wait); time.Sleep(time.Millisecond) {
			if beat(t, file) != before {
				return f
			}
		}
		thaw(t, f)
		resume(t, before)
	}
	t.Fatal("the timer continues no process")
	return nil
}
