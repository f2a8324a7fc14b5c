//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
)

// atOnce is a capture that begins with the command.
var atOnce = wire.Capture{QuietMS: 10, MaxMS: 10}

// newCapturedHome returns a home with a sandbox whose box reports that processes run when it is stirred.
func newCapturedHome(t *testing.T) (*home, *fakeBox) {
	t.Helper()
	h := newKeptHome(t)
	b := h.box("a")
	b.stirred = make(chan struct{}, 1)
	return h, b
}

// during starts a detached command.
func (h *home) during(how wire.Capture) (exec string) {
	h.t.Helper()
	info, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"wait"}, Capture: how})
	if err != nil {
		h.t.Fatal(err)
	}
	return info.ID
}

// writes creates a file as a process of the box does. It appears whole: an empty file may be captured before the test
// fills it, and counts once more then.
func (h *home) writes(b *fakeBox, file string) {
	h.t.Helper()
	whole := filepath.Join(h.t.TempDir(), file)
	if err := os.WriteFile(whole, []byte(file), 0o644); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(whole, filepath.Join(h.rootOf("a"), file)); err != nil {
		h.t.Fatal(err)
	}
	select {
	case b.stirred <- struct{}{}:
	default:
	}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// autos counts the automatic snapshots of sandbox a.
func (h *home) autos() (n int) {
	for _, s := range h.story("a") {
		if strings.HasPrefix(s, "auto: ") {
			n++
		}
	}
	return n
}

// TestCapture_DuringCommands checks that changes are captured while any command runs, by one follower, and not when
// none is left.
func TestCapture_DuringCommands(t *testing.T) {
	t.Parallel()
	h, b := newCapturedHome(t)
	one, two := h.during(atOnce), h.during(atOnce)
	h.writes(b, "f")
	until(t, "the change was not captured", func() bool { return h.autos() == 1 })
	until(t, "nothing waits for a process to run", func() bool { return b.watched.Load() == 1 })
	b.end(one)
	x, err := h.attached(ctx, one)
	if err != nil || !x.Changed || x.Paths != 1 || x.Snapshot != x.Head {
		t.Errorf("the exit is %+v, %v; want the change that was captured while it ran", x, err)
	}
	h.writes(b, "g")
	until(t, "the change was not captured after the exit of one command", func() bool { return h.autos() == 2 })
	until(t, "nothing waits for a process to run", func() bool { return b.watched.Load() == 1 })
	b.end(two)
	if x, err = h.attached(ctx, two); err != nil || x.Paths != 2 {
		t.Errorf("the exit is %+v, %v; want both changes", x, err)
	}
	until(t, "something waits although no command is left", func() bool { return b.watched.Load() == 0 })
	three := h.during(atOnce)
	h.writes(b, "h")
	until(t, "the change of a later command was not captured", func() bool { return h.autos() == 3 })
	b.end(three)
	four := h.during(wire.Capture{Off: true})
	h.writes(b, "i")
	if _, err := h.Commit(ctx, "a", ""); err != nil {
		t.Fatal(err)
	}
	b.end(four)
	if x, err = h.attached(ctx, four); err != nil || !x.Changed || x.Paths != 1 {
		t.Errorf("the exit is %+v, %v; want the change that the user captured while it ran", x, err)
	}
	if b.crowded.Load() {
		t.Error("a box had two followers")
	}
	if x := h.exits(t, "a")[one]; x.ChangesTotal != 0 || x.Before == x.Snapshot {
		t.Errorf("recorded: %+v; want no changes in the snapshot after it, and the snapshots before and after it", x)
	}
}

// TestCapture_DuringCommandsOnly checks that nothing is asked of the box for short commands, and for long ones that
// exclude it.
func TestCapture_DuringCommandsOnly(t *testing.T) {
	t.Parallel()
	h, b := newCapturedHome(t)
	off, short := h.during(wire.Capture{Off: true}), h.during(wire.Capture{})
	for range 20 {
		h.run("a", "true")
	}
	h.writes(b, "f")
	time.Sleep(50 * time.Millisecond)
	if n := b.looked.Load(); n != 0 || h.autos() != 0 {
		t.Errorf("%d calls, %d automatic snapshots; want none", n, h.autos())
	}
	// Another command does not wait until the follower of the short one would begin.
	h.during(atOnce)
	until(t, "the change was not captured", func() bool { return h.autos() == 1 })
	b.end(off)
	b.end(short)
}

// TestCapture_DuringCommandsOfAnEarlierDaemon checks that another daemon captures the changes of a command that
// survives, on the terms that it was started with, and adds up what it changed.
func TestCapture_DuringCommandsOfAnEarlierDaemon(t *testing.T) {
	t.Parallel()
	for name, killed := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, b := newCapturedHome(t)
			exec := h.during(atOnce)
			h.writes(b, "f")
			until(t, "the change was not captured", func() bool { return h.autos() == 1 })
			h.close()
			if killed {
				h.forgetAgreed()
			}
			h.open()
			h.writes(b, "g")
			until(t, "the change was not captured after a restart", func() bool { return h.autos() == 2 })
			b.end(exec)
			if x, err := h.attached(ctx, exec); err != nil || !x.Changed || x.Paths != 2 {
				t.Errorf("the exit is %+v, %v; want both changes; history: %q", x, err, h.story("a"))
			}
		})
	}
}

// TestCapture_ExcludedAfterRestart checks that another daemon does not capture a command that excludes it.
func TestCapture_ExcludedAfterRestart(t *testing.T) {
	t.Parallel()
	h, b := newCapturedHome(t)
	h.during(wire.Capture{Off: true})
	h.close()
	h.open()
	h.writes(b, "f")
	time.Sleep(50 * time.Millisecond)
	if h.autos() != 0 || b.looked.Load() != 0 {
		t.Error("the changes of a command were captured although it excludes that")
	}
}

// TestCapture_LaterDuringCommands checks that changes from outside are captured automatically while a command is.
func TestCapture_LaterDuringCommands(t *testing.T) {
	t.Parallel()
	h, b := newCapturedHome(t)
	later := func() bool {
		t.Helper()
		s, _, err := h.acquire(ctx, "a", "testing")
		if err != nil {
			t.Fatal(err)
		}
		defer s.unlock(h.Engine)
		return h.CaptureLater(commandHeld{h.Engine, s})
	}
	if h.during(wire.Capture{}); later() {
		t.Error("changes are said to be captured for a command that has just started")
	}
	exec := h.during(atOnce)
	until(t, "nothing waits for a process to run", func() bool { return b.watched.Load() == 1 })
	h.behind("a", "f", "from outside")
	if !later() {
		t.Error("changes are said not to be captured")
	}
	until(t, "the change was not captured", func() bool { return h.autos() == 1 })
	b.end(exec)
	if _, err := h.attached(ctx, exec); err != nil {
		t.Fatal(err)
	}
	if later() {
		t.Error("changes are said to be captured although no command asks for it")
	}
}

// TestCapture_DuringCommandsIsChecked checks that invalid times, and memory, are refused before a command starts.
func TestCapture_DuringCommandsIsChecked(t *testing.T) {
	t.Parallel()
	h := newKeptHome(t)
	for _, how := range []wire.Capture{
		{QuietMS: 1}, {QuietMS: 100, MaxMS: 50}, {MemoryEveryMS: 5000}, {MemoryOnMark: true},
	} {
		req := wire.ExecRequest{Cmd: []string{"true"}, Capture: how}
		if _, err := h.StartExec(ctx, "a", req); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v, detached: %v", how, err)
		}
		if _, err := h.Exec(ctx, "a", req, stream{strings.NewReader(""), nil}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", how, err)
		}
	}
	if n := len(h.told(h.id("a"))); n == 0 || len(h.register.Open()) != 0 {
		t.Errorf("%d records, open commands: %v", n, h.register.Open())
	}
}

// TestCapture_DuringCommandsWaitsForBudget checks that the budget of automatic snapshots holds for all commands.
func TestCapture_DuringCommandsWaitsForBudget(t *testing.T) {
	t.Parallel()
	h, b := newCapturedHome(t)
	h.spends("a", audit.ClassCaptures, 1<<40)
	h.during(atOnce)
	h.writes(b, "f")
	until(t, "the follower does not look", func() bool { return b.looked.Load() > 0 })
	time.Sleep(50 * time.Millisecond)
	if n := h.autos(); n != 0 {
		t.Errorf("%d automatic snapshots; want none", n)
	}
}
