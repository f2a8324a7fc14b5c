//go:build linux

package upkeep

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

func TestByHalves(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		var ids []timeline.SnapshotID
		for i := range n {
			ids = append(ids, timeline.SnapshotID(fmt.Sprintf("%02d", i)))
		}
		got := byHalves(ids)
		slices.Sort(got)
		if !slices.Equal(got, ids) {
			t.Errorf("of %d: %v", n, got)
		}
	}
}

// TestFinalizeOne_SkipsRemovedLayer checks that a layer that was removed before its turn is not hashed at all.
func TestFinalizeOne_SkipsRemovedLayer(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	db, err := meta.Open(ctx, filepath.Join(dir, "coppice.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	defer layers.Close()
	const id = timeline.LayerID("0123456789abcdef") // it is on the disk, and has no record any more
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := layers.ImportDir(ctx, id, src, layer.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	u := New(Config{DB: db, Layers: layers, Log: slog.New(slog.DiscardHandler)})
	if err := u.finalizeOne(ctx, id); err != nil || layers.Finalized(id) {
		t.Errorf("%v; finalized: %v", err, layers.Finalized(id))
	}
}

// TestMayBeThick_QueuesEveryHundredthSnapshot checks that the first automatic snapshot that is
// seen of a sandbox, and then every hundredth, causes it to be thinned out.
func TestMayBeThick_QueuesEveryHundredthSnapshot(t *testing.T) {
	t.Parallel()
	u := New(Config{})
	const id = timeline.SandboxID("0123456789ab")
	var queued []int
	for i := range 2*ThinEvery + 1 {
		u.MayBeThick(timeline.Snapshot{Sandbox: id, Cause: timeline.CauseExec})
		u.MayBeThick(timeline.Snapshot{Sandbox: id, Cause: timeline.CauseAuto})
		if u.thick[id] {
			queued = append(queued, i)
		}
		delete(u.thick, id)
	}
	if want := []int{0, ThinEvery, 2 * ThinEvery}; !slices.Equal(queued, want) {
		t.Errorf("it was queued after %v, want %v", queued, want)
	}
	select {
	case <-u.work:
	default:
		t.Error("the work in the background was not woken")
	}
	u.Forget(id)
	u.MayBeThick(timeline.Snapshot{Sandbox: id, Cause: timeline.CauseAuto})
	if !u.thick[id] {
		t.Error("a sandbox that was forgotten is not counted from the beginning")
	}
}
