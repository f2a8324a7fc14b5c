//go:build linux && (amd64 || arm64)

package box_test

import (
	"fmt"
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
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestLocked_FreezesWhileItConnects checks that a connection that takes long delays no capture.
func TestLocked_FreezesWhileItConnects(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	b := (boxtest.Tier{Config: locked}).Start(t)
	s := b.Open(t, wire.ExecRequest{Stdin: true, Cmd: []string{"python3", "-c", prelude + `
l = socket.socket(socket.AF_UNIX); l.bind('s'); l.listen(0)
def references(): # of the listening socket, in /proc/net/unix
    inode = str(os.fstat(l.fileno()).st_ino)
    return [row.split()[1] for row in open('/proc/net/unix') if row.split()[6] == inode]
full, late = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
full.connect('s') # which fills the queue
before = references()
waiting = threading.Thread(target=lambda: late.connect('s')); waiting.start()
while references() == before: time.sleep(0.001) # a process that waits in connect holds another
print('connecting', flush=True)
sys.stdin.readline()
l.accept(); l.accept(); waiting.join()
print('connected', flush=True)`}})
	defer s.Close()
	boxtest.WaitOutput(t, s, "connecting")
	f, err := b.Freeze(t.Context()) // fails if it waits for the connection, which ends only after the thaw
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	boxtest.Send(t, s, wire.FrameStdin, []byte("\n"))
	boxtest.WaitOutput(t, s, "connected")
}

// chains is a program in Python that leaves processes behind that are in no list for long: each starts the next and
// exits. They ignore signals, and end when there is a file "end". Each chain counts in a file, and the last begins a
// session with each process.
const chains = `
import os, signal, time
for s in range(1, 64):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
end = time.time() + 60
def chain(i):
    os.setsid()
    n = 0
    while time.time() < end and not os.path.exists('end'):
        if os.fork(): os._exit(0)
        if i == 2: os.setsid()
        n += 1
        if n % 20 == 0: open('beat%d' % i, 'w').write(str(n))
    os._exit(0)
for i in range(3):
    if os.fork() == 0: chain(i)
while not all(os.path.exists('beat%d' % i) for i in range(3)): time.sleep(0.01)`

// startChains starts chains in a locked workspace, and returns it.
func startChains(t *testing.T) *boxtest.Box {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: to make system calls")
	}
	b := (boxtest.Tier{Config: locked}).Start(t)
	if s := b.Enforced.State("signals"); s != plan.On {
		t.Skipf("needs landlock: signals is %q", s)
	}
	r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "exec python3 -c \"$0\" >/dev/null 2>&1", chains}})
	if r.Exit.Code != 0 {
		t.Fatalf("%+v", r)
	}
	return b
}

// beats returns what chains have counted.
func beats(t *testing.T, b *boxtest.Box) (counted [3]string) {
	t.Helper()
	for i := range counted {
		text, err := os.ReadFile(filepath.Join(b.Config.Spec.Bind, fmt.Sprintf("beat%d", i)))
		if err != nil {
			t.Fatal(err)
		}
		counted[i] = string(text)
	}
	return counted
}

// still checks that chains do not run.
func still(t *testing.T, b *boxtest.Box, when string) {
	t.Helper()
	before := beats(t, b)
	time.Sleep(300 * time.Millisecond)
	if after := beats(t, b); after != before {
		t.Errorf("processes run %s: %q, then %q", when, before, after)
	}
}

// TestLocked_EndsAllProcesses checks that no process outlives the end of a locked workspace: by a stop, or since its
// init or its keeper was killed.
func TestLocked_EndsAllProcesses(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *boxtest.Box) error{
		"stop":            func(t *testing.T, b *boxtest.Box) error { return b.Stop(t.Context(), 0) },
		"stop with grace": func(t *testing.T, b *boxtest.Box) error { return b.Stop(t.Context(), 100*time.Millisecond) },
		"killed init": func(t *testing.T, b *boxtest.Box) error {
			parent := b.Sh(t, "echo $PPID")
			pid, err := strconv.Atoi(strings.TrimSpace(parent.Stdout))
			if err == nil {
				err = unix.Kill(pid, unix.SIGKILL)
			}
			return err
		},
		"killed keeper": func(t *testing.T, b *boxtest.Box) error { return box.Kill(t.Context(), b.Config.RunDir) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startChains(t)
			if err := end(t, b); err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.Gone():
			case <-time.After(20 * time.Second):
				t.Fatal("the keeper does not exit")
			}
			if name == "killed keeper" { // init ends the processes after the keeper
				for before, end := beats(t, b), time.Now().Add(20*time.Second); time.Now().Before(end); {
					time.Sleep(300 * time.Millisecond)
					after := beats(t, b)
					if after == before {
						break
					}
					before = after
				}
			}
			still(t, b, "after the end")
		})
	}
}

// TestLocked_FreezesAllProcesses checks that no process of a locked workspace runs while it is frozen, and that those
// that ran continue.
func TestLocked_FreezesAllProcesses(t *testing.T) {
	t.Parallel()
	b := startChains(t)
	stopped := strings.TrimSpace(b.Sh(t, "sleep 1000 & kill -STOP $!; echo $!").Stdout)
	for range 3 {
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		still(t, b, "while frozen")
		before := beats(t, b)
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if now := beats(t, b); now[0] != before[0] && now[1] != before[1] && now[2] != before[2] {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("processes do not continue: %q", before)
			}
		}
	}
	if r := b.Sh(t, "grep State /proc/"+stopped+"/status"); !strings.Contains(r.Stdout, "T") {
		t.Errorf("a process that was stopped before runs: %+v", r)
	}
}
