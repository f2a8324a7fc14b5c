//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// orphan kills keeper and init of a locked workspace so that neither can end what runs in it.
func orphan(t *testing.T, b *boxtest.Box) {
	t.Helper()
	keeper, init := monitors(t, b)
	for _, pid := range []int{keeper, init} {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	awaitHalted(t, keeper)
	awaitHalted(t, init)
	for _, pid := range []int{keeper, init} {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitHalted waits until each thread of a process that was sent SIGSTOP has stopped: one of them takes the signal and
// then stops the others, which run until then (kernel/signal.c, do_signal_stop).
func awaitHalted(t *testing.T, pid int) {
	t.Helper()
	running := func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(stats) == 0 {
			t.Fatalf("the threads of process %d: %v, %v", pid, stats, err)
		}
		return slices.ContainsFunc(stats, func(stat string) bool {
			text, err := os.ReadFile(stat)
			_, state, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
			return err == nil && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "t")
		})
	}
	for end := time.Now().Add(2 * time.Minute); running(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

// isLeft checks that a box whose keeper and init were killed does not count as ended.
func isLeft(t *testing.T, b *boxtest.Box) {
	t.Helper()
	if err := b.Stop(t.Context(), 0); !fault.Is(err, fault.Conflict) {
		t.Fatalf("stop while processes are left: %v", err)
	}
	if _, err := box.Attach(t.Context(), b.Config.RunDir); !fault.Is(err, fault.Conflict) {
		t.Errorf("attach while processes are left: %v", err)
	}
	if _, _, err := box.Start(t.Context(), programtest.Programs(), b.Config); !fault.Is(err, fault.Conflict) {
		t.Errorf("start while processes are left: %v", err)
	}
	if _, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a command while processes are left: %v", err)
	}
	select {
	case <-b.Gone():
		t.Error("gone while processes are left")
	default:
	}
}

// TestLocked_WithoutMonitorHasNotEnded checks that a locked workspace whose keeper and init were killed does not count
// as ended while a process is left, and can be started again when none is. The test is not parallel: what it leaves
// looks like the processes of other locked workspaces without a keeper.
func TestLocked_WithoutMonitorHasNotEnded(t *testing.T) { //nolint:paralleltest // see above
	t.Run("processes in no list", func(t *testing.T) {
		b := startChains(t)
		orphan(t, b)
		isLeft(t, b)
		for before, end := beats(t, b), time.Now().Add(20*time.Second); beats(t, b) == before; {
			if time.Now().After(end) {
				t.Fatal("the processes do not run")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := os.WriteFile(filepath.Join(b.Config.Spec.Bind, "end"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		endsAndStarts(t, b)
	})
	t.Run("processes that hide what they are", func(t *testing.T) {
		if _, err := exec.LookPath("python3"); err != nil {
			t.Skip("needs python3: to make system calls")
		}
		b := (boxtest.Tier{Config: locked}).Start(t)
		other := (boxtest.Tier{Config: locked}).Start(t) // its processes run all the time
		other.Sh(t, "sleep 1000 >/dev/null 2>&1 &")
		r := b.Do(t, wire.ExecRequest{Cmd: []string{"env", "-i", "/usr/bin/env", "python3", "-c", hidden}})
		if r.Exit.Code != 0 || len(strings.Fields(r.Stdout)) != 3 {
			t.Fatalf("%+v", r)
		}
		other.Sh(t, "sleep 1000 >/dev/null 2>&1 &")
		orphan(t, b)
		isLeft(t, b)
		for _, pid := range strings.Fields(r.Stdout) {
			var told *fault.Error
			if err := b.Stop(t.Context(), 0); !errors.As(err, &told) || told.Kind != fault.Conflict {
				t.Fatalf("stop while processes are left: %v", err)
			}
			if !slices.Contains(strings.Fields(strings.ReplaceAll(told.Hint, ";", " ")), pid) {
				t.Errorf("the hint does not name process %s: %s", pid, told.Hint)
			}
			n, err := strconv.Atoi(pid)
			if err == nil {
				err = unix.Kill(n, unix.SIGKILL)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		endsAndStarts(t, b)
		if n, err := other.Procs(t.Context()); err != nil || n != 2 {
			t.Errorf("%d processes of another sandbox: %v", n, err)
		}
	})
}

// hidden is a program in Python that leaves three processes behind, and prints their pids: a subreaper with the name
// and the arguments of init, its child, and an orphan of that. They cannot be inspected by the same user, and have
// neither the environment nor the directory of commands.
const hidden = `
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
def name(): libc.prctl(15, b'coppice-init'); libc.prctl(4, 0) # PR_SET_NAME, PR_SET_DUMPABLE
def spawn(f):
    r, w = os.pipe()
    if os.fork() == 0:
        name(); f(w); os.closerange(0, 3); time.sleep(1000)
        os._exit(0)
    os.close(w)
    return os.read(r, 100)
def told(w): os.write(w, b' %d' % os.getpid())
def between(w):
    os.write(w, spawn(told)); os._exit(0)
def reaper(w):
    libc.prctl(36, 1) # PR_SET_CHILD_SUBREAPER
    os.setsid(); os.chdir('/')
    orphan = spawn(between)
    os.write(w, b'%d' % os.getpid() + spawn(told) + orphan)
print(spawn(reaper).decode())`

// endsAndStarts checks that a box whose last process ends or has ended counts as ended, and can be started again.
func endsAndStarts(t *testing.T, b *boxtest.Box) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := b.Stop(t.Context(), 0)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("stop when no process is left: %v", err)
		}
	}
	select {
	case <-b.Gone():
	default:
		t.Error("stopped, and not gone")
	}
	if _, err := box.Attach(t.Context(), b.Config.RunDir); !fault.Is(err, fault.NotFound) {
		t.Errorf("attach when no process is left: %v", err)
	}
	again, _, err := box.Start(t.Context(), programtest.Programs(), b.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(filepath.Join(b.Config.RunDir, "unended-*")); err != nil || len(names) > 0 {
		t.Errorf("after the end: %q, %v", names, err)
	}
}
