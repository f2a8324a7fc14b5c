//go:build linux

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// halfAdopted leaves a sandbox as a daemon does that is killed after it has moved the live root into a layer.
func (h *home) halfAdopted(name string) adoption {
	h.t.Helper()
	id := h.id(name)
	h.box(name)
	if err := h.stopAll(name); err != nil {
		h.t.Fatal(err)
	}
	roots, err := filepath.Glob(filepath.Join(h.sandboxDir(id), liveDir, "*", "root"))
	if err != nil || len(roots) != 1 {
		h.t.Fatal(roots, err)
	}
	a := adoption{Sandbox: id, Layer: "00000000000000ff", Parts: []rootspec.Part{{Dir: roots[0], Path: "/"}}}
	if _, err := h.DB.BeginIntent(ctx, intentAdopt, a); err != nil {
		h.t.Fatal(err)
	}
	if err := h.DB.Flush(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.Layers.Adopt(ctx, a.Layer, a.Parts); err != nil {
		h.t.Fatal(err)
	}
	return a
}

// TestUnadoptAll_KeepsLayerItCannotMoveBack kills a daemon while a live root becomes a layer: nothing is lost. While
// the next daemon cannot move the live root back, the sandbox cannot be used, its layer stays, and other sandboxes
// are not affected.
func TestUnadoptAll_KeepsLayerItCannotMoveBack(t *testing.T) {
	disk := &vfs.Faulty{FS: vfs.OS()}
	h := newHomeOn(t, disk)
	h.onDir("a")
	h.onDir("b")
	h.run("a", "write", "f", "not in a snapshot yet")
	a := h.halfAdopted("a")

	h.close()
	disk.FailOp(vfs.OpRename, 1, syscall.EIO)
	h.open()
	if !disk.Failed() {
		t.Fatal("the live root was not moved back")
	}
	h.run("b", "write", "f", "b")
	if _, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"true"}}, stream{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a command started while the live root was not moved back: %v", err)
	}
	if _, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil {
		t.Error(err)
	}
	if !h.Layers.Has(a.Layer) {
		t.Fatal("the layer was removed as garbage")
	}

	h.close()
	h.open()
	if got := h.tree("a")["f"]; got != "not in a snapshot yet" {
		t.Errorf("the live root shows %q", got)
	}
	if h.Layers.Has(a.Layer) {
		t.Error("the layer was not removed")
	}
	if ints, err := h.DB.Intents(ctx); err != nil || len(ints) > 0 {
		t.Errorf("%d intents, %v", len(ints), err)
	}
}

// TestRemove_ForcesHalfAdoptedSandbox checks that a sandbox whose changes can never be moved
// back does not block gc for others, and can be removed.
func TestRemove_ForcesHalfAdoptedSandbox(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	for _, text := range []string{"one", "two", "three"} {
		h.run("b", "write", "f", text)
	}
	a := h.halfAdopted("a")
	root := a.Parts[0].Dir
	if err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(filepath.Join(h.Layers.Dir(a.Layer), "f"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "g"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	res, err := h.GC(ctx, wire.GCRequest{Keep: wire.Keep{Last: 1}}, ignore)
	if err != nil || len(res.Removed) == 0 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	if _, err := h.Remove(ctx, []string{"a"}, false); !fault.Is(err, fault.Unavailable) {
		t.Errorf("removed without force: %v", err)
	}
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	if h.Layers.Has(a.Layer) {
		t.Error("the layer was not removed")
	}
	if ints, err := h.DB.Intents(ctx); err != nil || len(ints) > 0 {
		t.Errorf("%d intents, %v", len(ints), err)
	}
	h.run("b", "write", "f", "four")
}

// TestFindMounted_KeepsAllLayersOnDamagedNote checks that if a note of mounted layers cannot
// be read, all layers are kept and the home can be used.
func TestFindMounted_KeepsAllLayersOnDamagedNote(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "one")
	for name, damage := range map[string]func(string) error{
		"not JSON":    func(p string) error { return os.WriteFile(p, []byte("["), 0o600) },
		"a directory": func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		note := h.mounts.path(h.id("a")) // missing, or damaged by the previous case
		if err := errors.Join(os.RemoveAll(note), damage(note)); err != nil {
			t.Fatal(err)
		}
		h.close()
		h.open()
		on, err := h.Layers.List(ctx)
		if err != nil || len(on) == 0 {
			t.Fatal(on, err)
		}
		used := h.mounts.inUse()
		for _, l := range on {
			if !used[l] {
				t.Errorf("%s: layer %s may be removed", name, l)
			}
		}
		h.run("a", "write", "f", "two")
	}
}
