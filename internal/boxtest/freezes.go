//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/plan"
)

var (
	walled = []string{plan.TierProcess, plan.TierSupervised, plan.TierContainer, plan.TierGvisor}
	// The confined tiers whose system calls the host's kernel executes, so that filters and a listener see them.
	process = []string{plan.TierProcess, plan.TierSupervised, plan.TierContainer}
	hosts   = []string{plan.TierProcess, plan.TierWorkspace} // tiers that can have the host's network
)

var freezes = []check{
	{"nothing to freeze", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f, err := b.Freeze(t.Context())
		if err != nil || f.Procs() != 0 {
			t.Fatalf("%+v, %v", f, err)
		}
		if err := f.Thaw(); err != nil {
			t.Error(err)
		}
		if err := f.Thaw(); err != nil {
			t.Error("thawed twice:", err)
		}
	}},
	{"nothing is written while frozen", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f := b.outside(t)
		many := 300
		if tier.Name == plan.TierGvisor { // starting a process takes ten times as long there
			many = 40
		}
		script := fmt.Sprintf(
			`i=0; while [ $i -lt %d ]; do (while :; do echo x >> %s; [ $((i%%10)) = 0 ] || sleep 1; done) & i=$((i+1)); done; wait`, many, f.inside)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", script}})
		WaitStarted(t, s)
		for start := time.Now(); time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
			if n, err := b.Procs(t.Context()); err != nil || n > many {
				break
			}
		}
		for range 5 {
			start := time.Now()
			z, err := b.Freeze(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			before, _ := os.Stat(f.host)
			time.Sleep(20 * time.Millisecond)
			after, _ := os.Stat(f.host)
			if before.Size() != after.Size() {
				t.Errorf("it grew from %d to %d", before.Size(), after.Size())
			}
			if z.Procs() < many/3 {
				t.Errorf("%d processes", z.Procs())
			}
			if err := z.Thaw(); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d processes in %v", z.Procs(), took)
			for range 100 {
				if now, _ := os.Stat(f.host); now.Size() > after.Size() {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if now, _ := os.Stat(f.host); now.Size() == after.Size() {
				t.Fatal("they do not resume")
			}
		}
	}},
	{"a process that continues its parent", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c",
			"p=$$; (while :; do kill -CONT $p; done) & echo on; while :; do :; done"}})
		WaitOutput(t, s, "on")
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Thaw(); err != nil {
			t.Error(err)
		}
	}},
	{"a thaw after a stop", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Thaw(); err != nil {
			t.Errorf("nothing is left to thaw, but: %v", err)
		}
	}},
	{"it thaws when its caller is gone", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "sleep 0.2; echo on"}})
		WaitStarted(t, s)
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		f.Drop()
		WaitOutput(t, s, "on")
	}},
	{"a start waits for the thaw", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.AfterFunc(200*time.Millisecond, func() { _ = f.Thaw() })
		if r := b.Sh(t, "echo hi"); r.Stdout != "hi\n" || time.Since(start) < 150*time.Millisecond {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
	}},
	{"what was stopped before stays stopped", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		// gVisor drops a signal that arrives while execve(2) loads a program.
		r := b.Sh(t,
			"setsid sleep 1000 >/dev/null 2>&1 & while [ $(cut -d' ' -f6 /proc/$!/stat) != $! ]; do :; done; while ! grep -q "+
				"\") T \" /proc/$!/stat; do kill -STOP $!; done; echo $!")
		pid := strings.TrimSpace(r.Stdout)
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		if r := b.Sh(t, "cat /proc/"+pid+"/stat"); !strings.Contains(r.Stdout, ") T ") {
			t.Errorf("%+v", r)
		}
	}},
	{"vfork and threads", nil, func(t *testing.T, tier Tier) {
		if r := tier.Start(t).Sh(t, "command -v python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to make system calls")
		}
		b := tier.Start(t)
		// A child that takes long between vfork and exec, and threads that write.
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", `
import ctypes, os, threading, sys
libc = ctypes.CDLL(None)
def spin():
    while True: os.stat("/")
for _ in range(5): threading.Thread(target=spin, daemon=True).start()
def forks():
    while True: os.posix_spawn("/bin/true", ["true"], {}); os.wait()
threading.Thread(target=forks, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
`}})
		WaitOutput(t, s, "ready")
		for range 30 {
			f, err := b.Freeze(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"what can be written through mappings is suspect", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		if r := b.Sh(t, "command -v python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to make system calls")
		}
		f := b.outside(t)
		s := b.Open(t, wire.ExecRequest{Stdin: true, Cmd: []string{"python3", "-c", `
import mmap, os, sys
base = os.fsencode(sys.argv[1])
def shared(name):
    f = open(name, "w+b"); f.truncate(8192)
    m = mmap.mmap(f.fileno(), 8192); m[0:1] = b"w" # a kernel may map what is used alone
    return m
a = shared(base + b"\xff\n")
fd = os.open(os.path.dirname(base), os.O_RDONLY)
for i in range(17): # paths that are longer than a system call takes
    os.mkdir("d" * 250, dir_fd=fd); fd = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
os.fchdir(fd); c = shared("deep"); os.chdir("/")
r = open("/etc/passwd", "rb"); n = mmap.mmap(r.fileno(), 10, prot=mmap.PROT_READ)
open(base, "w").write("private"); q = open(base, "r+b"); p = mmap.mmap(q.fileno(), 7, flags=mmap.MAP_PRIVATE)
y = mmap.mmap(-1, 10); u = os.memfd_create("x"); os.ftruncate(u, 10); v = mmap.mmap(u, 10)
print("ready", flush=True); sys.stdin.readline()
os.link(base + b"\xff\n", base + b"2"); os.unlink(base + b"\xff\n")
print("removed", flush=True); sys.stdin.read()
`, f.inside}})
		WaitOutput(t, s, "ready")
		suspects := func() box.Suspects {
			t.Helper()
			z, err := b.Freeze(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := z.Thaw(); err != nil {
				t.Fatal(err)
			}
			return z.Suspects()
		}
		want := []string{f.inside + "\xff\n", path.Dir(f.inside) + strings.Repeat("/"+strings.Repeat("d", 250), 17) + "/deep"}
		slices.Sort(want)
		if tier.Name == plan.TierGvisor { // its kernel does not report writable mappings: all files are suspect
			want = nil
		}
		if got := suspects(); !slices.Equal(got.Paths, want) || len(got.Inodes) != len(want) ||
			got.Since.IsZero() != (want != nil) {
			t.Errorf("%d paths and %d inodes are suspect, since %v; want these paths and no others: %q", len(got.Paths),
				len(got.Inodes), got.Since, want)
		}
		Send(t, s, wire.FrameStdin, []byte("\n"))
		WaitOutput(t, s, "removed")
		var st unix.Stat_t
		if err := unix.Stat(f.host+"2", &st); err != nil {
			t.Fatal(err)
		}
		if got := suspects(); got.Since.IsZero() && !slices.Contains(got.Inodes, st.Ino) {
			t.Errorf("inodes %d: the file that was removed under one of its names is not among them", got.Inodes)
		}
		Send(t, s, wire.FrameStdinEOF, []byte{})
		some := func(s box.Suspects) bool { return len(s.Paths)+len(s.Inodes) > 0 || !s.Since.IsZero() }
		left := suspects()
		for deadline := time.Now().Add(patience); some(left) &&
			time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			left = suspects()
		}
		if some(left) {
			t.Errorf("nothing runs, and suspects are %v", left)
		}
	}},
}
