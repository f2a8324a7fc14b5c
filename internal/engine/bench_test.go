//go:build linux

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// BenchmarkLayersBelow looks up the layers of a snapshot at the end of a chain of 2,000: for the first time, for a
// new snapshot on a known one, and again.
func BenchmarkLayersBelow(b *testing.B) {
	h := newHome(b)
	h.onDir("a")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		b.Fatal(err)
	}
	grow := func() timeline.SnapshotID {
		id, err := timeline.NewSnapshotID(h.Rand)
		if err != nil {
			b.Fatal(err)
		}
		layer, err := timeline.NewLayerID(h.Rand)
		if err != nil {
			b.Fatal(err)
		}
		s := timeline.Snapshot{ID: id, Sandbox: rec.ID, Parent: rec.Head, Cause: timeline.CauseExec, Created: time.Now()}
		r := timeline.Route{Top: id, Below: rec.Head, Layer: layer}
		if err := h.DB.AddSnapshot(ctx, s, &r, 0, func(r *meta.Sandbox) { r.Head = id }); err != nil {
			b.Fatal(err)
		}
		rec.Head = id
		return id
	}
	for range 2000 {
		grow()
	}
	ask := func(b *testing.B, id timeline.SnapshotID) {
		if ids, err := h.stacks.Below(ctx, id); err != nil || len(ids) < 2000 {
			b.Fatal(fmt.Sprint(len(ids), " layers, ", err))
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			h.stacks.Rerouted()
			ask(b, rec.Head)
		}
	})
	b.Run("grown", func(b *testing.B) {
		for b.Loop() {
			ask(b, grow())
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			ask(b, rec.Head)
		}
	})
}
