//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/timeline"
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

// What keeps one layer from being sealed is no matter of other sandboxes.
func TestSealAll_GoesOnPastALayerThatCannotBeSealed(t *testing.T) {
	h := newHome(t)
	h.onDir("evil")
	h.onDir("innocent")
	if err := h.sealAll(ctx); err != nil {
		t.Fatal(err)
	}
	h.sealing.Lock() // the background waits
	bad := h.layerOf(h.run("evil", "write", "f", "one").Head)
	// The place of the new manifest is taken.
	if err := os.Mkdir(filepath.Join(filepath.Dir(h.Layers.Dir(bad)), "manifest.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	good := h.layerOf(h.run("innocent", "write", "precious", "work").Head)
	h.sealing.Unlock()

	if err := h.sealAll(ctx); err == nil || !strings.Contains(err.Error(), string(bad)) || strings.Contains(err.Error(), string(good)) {
		t.Errorf("the error is %v, want that of layer %s alone", err, bad)
	}
	left, err := h.DB.LayersUnsealed(ctx)
	if err != nil || len(left) != 1 || left[0].ID != bad {
		t.Errorf("not sealed: %+v, %v; want layer %s alone", left, err, bad)
	}
}
