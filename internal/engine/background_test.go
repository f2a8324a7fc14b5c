//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// layerOf is the layer of a snapshot.
func (h *home) layerOf(head string) timeline.LayerID {
	h.t.Helper()
	_, routes, err := h.DB.Ground(ctx, timeline.SnapshotID(head))
	if err != nil || len(routes) == 0 {
		h.t.Fatalf("%d routes of %s, %v", len(routes), head, err)
	}
	return routes[0].Layer
}

// TestFinalize_ContinuesPastFailedLayer checks that a layer that cannot be finalized does not
// affect other sandboxes.
func TestFinalize_ContinuesPastFailedLayer(t *testing.T) {
	h := newHome(t)
	h.onDir("evil")
	h.onDir("innocent")
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	release := h.Hold() // the background waits
	bad := h.layerOf(h.run("evil", "write", "f", "one").Head)
	// The place of the new manifest is taken.
	if err := os.Mkdir(filepath.Join(filepath.Dir(h.Layers.Dir(bad)), "manifest.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	good := h.layerOf(h.run("innocent", "write", "precious", "work").Head)
	release()

	if err := h.Finalize(ctx); err == nil || !strings.Contains(err.Error(), string(bad)) ||
		strings.Contains(err.Error(), string(good)) {
		t.Errorf("the error is %v, want that of layer %s alone", err, bad)
	}
	left, err := h.DB.UnfinalizedLayers(ctx)
	if err != nil || len(left) != 1 || left[0].ID != bad {
		t.Errorf("not finalized: %+v, %v; want layer %s alone", left, err, bad)
	}
}

// heldFinalize is a file system on which finalizing stops at a file with an attribute of overlayfs's,
// and on which no layer goes away.
type heldFinalize struct {
	vfs.FS
	reached, release chan struct{}
	once             sync.Once
}

func (f *heldFinalize) RemoveXattr(fd int, name string) error {
	f.once.Do(func() { close(f.reached) })
	<-f.release
	return f.FS.RemoveXattr(fd, name)
}

func (f *heldFinalize) Rename(fromDir int, from string, toDir int, to string) error {
	if strings.HasPrefix(to, "rm-") {
		return unix.EBUSY
	}
	return f.FS.Rename(fromDir, from, toDir, to)
}

// TestRemove_CancelsLayerFinalization matters because hashing the layer of a sandbox may take hours.
func TestRemove_CancelsLayerFinalization(t *testing.T) {
	files := &heldFinalize{FS: vfs.OS(), reached: make(chan struct{}), release: make(chan struct{})}
	h := newHomeOn(t, files)
	h.onDir("evil")
	h.onDir("innocent")
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	release := h.Hold() // the background waits
	large := h.layerOf(h.run("evil", "write", "f", "one").Head)
	if err := unix.Setxattr(filepath.Join(h.Layers.Dir(large), "f"), "user.overlay.metacopy", nil, 0); err != nil {
		t.Fatal(err)
	}
	good := h.layerOf(h.run("innocent", "write", "precious", "work").Head)
	release()

	done := make(chan error)
	go func() { done <- h.Finalize(ctx) }()
	<-files.reached
	if _, err := h.Remove(ctx, []string{"evil"}, true); err != nil {
		t.Error(err)
	}
	close(files.release)
	if err := <-done; err != nil {
		t.Errorf("finalizing the others: %v", err)
	}
	if h.Layers.Finalized(large) || !h.Layers.Finalized(good) {
		t.Errorf("finalized: the removed sandbox's layer %v, the other one's %v", h.Layers.Finalized(large), h.Layers.Finalized(good))
	}
}
