//go:build linux

package engine

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// twoStates makes a sandbox in which a process runs, with two snapshots, and returns their trees. The present starts
// from the second, with an uncaptured change.
func twoStates(t *testing.T, h *home) (one, two string, first, present tree) {
	t.Helper()
	h.onDir("a")
	h.run("a", "write", "d/f", "one")
	one = h.run("a", "write", "g", "one").Head
	first = h.tree("a")
	h.run("a", "write", "d/f", "two")
	h.run("a", "rm", "base")
	h.run("a", "rm", "g")
	two = h.run("a", "write", "g/h", "two").Head
	box := h.box("a")
	box.procs = 1
	if err := os.WriteFile(filepath.Join(box.root, "late"), []byte("late"), 0o644); err != nil {
		t.Fatal(err)
	}
	return one, two, first, readTree(t, box.root)
}

func TestRewindInPlace_KeepsUncapturedChanges(t *testing.T) {
	h := newHome(t)
	one, two, first, present := twoStates(t, h)
	r, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: one, InPlace: true})
	if err != nil || r.From != two || r.Kept == "" || r.Head != one || !r.InPlace || r.Rewritten == 0 || r.Stopped != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := h.tree("a"); !maps.Equal(got, first) {
		t.Errorf("the sandbox shows %v, want %v", got, first)
	}
	if r, err = h.Undo(ctx, "a", wire.UndoRequest{InPlace: true}); err != nil || !r.InPlace {
		t.Errorf("undo: %+v, %v", r, err)
	}
	if r, err = h.Redo(ctx, "a", wire.RedoRequest{InPlace: true}); err != nil || !r.InPlace || r.Head != one {
		t.Errorf("redo: %+v, %v", r, err)
	}
	if got := h.tree("a"); !maps.Equal(got, first) {
		t.Errorf("after undo and redo %v, want %v", got, first)
	}
	log, err := h.Log(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range log.Nodes {
		if strings.HasPrefix(n.Message, "before rewinding to") {
			if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: n.ID, InPlace: true}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := h.tree("a"); !maps.Equal(got, present) {
		t.Errorf("the captured present is %v, want %v", got, present)
	}
}

// TestRewindInPlace_StopsBoxWithoutProcesses checks that a sandbox without processes is stopped, as in an ordinary
// rewind.
func TestRewindInPlace_StopsBoxWithoutProcesses(t *testing.T) {
	h := newHome(t)
	one, _, first, _ := twoStates(t, h)
	box := h.box("a")
	box.procs = 0
	r, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: one, InPlace: true})
	if err != nil || r.InPlace || r.Head != one {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := h.tree("a"); h.box("a") == box || !maps.Equal(got, first) {
		t.Errorf("the sandbox shows %v, want %v", got, first)
	}
}

// moveOverFault rewinds in place to a snapshot while the k-th write fails, and with stays all after it. failed
// reports whether there were k writes.
func moveOverFault(
	t *testing.T, h *home, f *vfs.Faulty, to string, k int, errno unix.Errno, stays bool,
) (failed bool, err error) {
	t.Helper()
	release := calm(t, h)
	f.FailAt(k, errno, stays)
	_, err = h.Checkout(ctx, "a", wire.CheckoutRequest{Node: to, InPlace: true})
	failed = f.Failed()
	f.FailAt(0, 0, false)
	release()
	return failed, err
}

// TestRewindInPlace_RollsBackOnFailure fails each write in turn: the files stay as they were.
func TestRewindInPlace_RollsBackOnFailure(t *testing.T) {
	t.Parallel()
	first, step := looptest.Sample(t, 5)
	for k := 1 + first; ; k += step {
		f := &vfs.Faulty{FS: vfs.OS()}
		h := newHomeOn(t, f)
		one, _, _, present := twoStates(t, h)
		c, err := h.Commit(ctx, "a", "present")
		if err != nil {
			t.Fatal(err)
		}
		failed, err := moveOverFault(t, h, f, one, k, unix.ENOSPC, false)
		if !failed {
			if err != nil {
				t.Fatal(err)
			}
			if k < 10 {
				t.Fatalf("only %d writes", k)
			}
			return
		}
		if !fault.Is(err, fault.NoSpace) || !strings.Contains(err.Error(), "the changes were undone") || fault.HintOf(err) == "" {
			t.Fatalf("write %d: %v (%s)", k, err, fault.HintOf(err))
		}
		if got := h.tree("a"); !maps.Equal(got, present) {
			t.Fatalf("write %d: %v, want %v", k, got, present)
		}
		if again, err := h.Commit(ctx, "a", "nothing"); err != nil || again.Changed || again.Head != c.Head {
			t.Fatalf("write %d: %+v, %v", k, again, err)
		}
		h.close()
	}
}

// TestRewindInPlace_NoticesWriteDuringFreeze checks that the next capture includes what a process wrote after the
// present was captured, although it was frozen: a freeze by SIGSTOP ends with a SIGCONT that a timer sends. The file is
// older than what counts as just written when the rewind ends.
func TestRewindInPlace_NoticesWriteDuringFreeze(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	good := h.run("a", "write", "kept", "good").Head
	h.run("a", "write", "other", "two")
	box := h.box("a")
	box.procs = 1
	box.onRoot = func() {
		if err := os.WriteFile(filepath.Join(box.root, "kept"), []byte("evil"), 0o644); err != nil {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	r, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: good, InPlace: true})
	if err != nil || !r.InPlace || r.Head != good {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := h.tree("a")["kept"]; got != "evil" {
		t.Fatalf("the sandbox shows %q", got)
	}
	if c, err := h.Commit(ctx, "a", "after"); err != nil || c.Head == good {
		t.Errorf("the change is in no snapshot: %+v, %v", c, err)
	}
}

// TestRewindInPlace_LosesNothingWhenStuck covers a rewind that can be neither finished nor rolled back. The files are
// captured as they are, immediately or, after a crash, at the next start, and nothing acknowledged is lost.
func TestRewindInPlace_LosesNothingWhenStuck(t *testing.T) {
	t.Parallel()
	first, step := looptest.Sample(t, 5)
	for k := 1 + first; ; k += step {
		f := &vfs.Faulty{FS: vfs.OS()}
		h := newHomeOn(t, f)
		one, _, before, present := twoStates(t, h)
		c, err := h.Commit(ctx, "a", "present")
		if err != nil {
			t.Fatal(err)
		}
		failed, err := moveOverFault(t, h, f, one, k, unix.EIO, true)
		if !failed {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if err == nil {
			t.Fatalf("write %d failed without an error", k)
		}
		rec, err := h.DB.Sandbox(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		mixed := readTree(t, h.box("a").root)
		if k%2 == 0 { // as if the daemon had been killed
			if _, err := h.DB.BeginIntent(ctx, intentRewind, rewinding{Sandbox: rec.ID, What: "checking out x"}); err != nil {
				t.Fatal(err)
			}
		}
		h.close()
		h.open()
		if got := h.tree("a"); !maps.Equal(got, mixed) {
			t.Fatalf("write %d: after a restart %v, want %v", k, got, mixed)
		}
		for to, want := range map[string]tree{c.Head: present, one: before} {
			if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: to, InPlace: true}); err != nil {
				t.Fatal(err)
			}
			if got := h.tree("a"); !maps.Equal(got, want) {
				t.Fatalf("write %d: %s is %v, want %v", k, to, got, want)
			}
		}
		h.close()
	}
}

// calm waits until the background is idle, and keeps it so until release is called.
func calm(t *testing.T, h *home) (release func()) {
	t.Helper()
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	return h.Hold()
}
