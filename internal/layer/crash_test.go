package layer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// acked is what a store has acknowledged.
type acked struct {
	finalized map[timeline.LayerID]string // digests of layers
	removed   map[timeline.LayerID]bool   // layers of which a removal was begun
	adopting  bool                        // an adoption was begun whose layer is not finalized
}

const adoptedID = timeline.LayerID("00000000000000ad")

// adoptable returns the parts of the adoption, in a home.
func adoptable(home string) []rootspec.Part {
	return []rootspec.Part{
		{Dir: filepath.Join(home, "root"), Path: "/"},
		{Dir: filepath.Join(home, "etc"), Path: "/etc"},
		{Dir: filepath.Join(home, "lib"), Path: "/usr/lib"},
		{Dir: filepath.Join(home, "inner"), Path: "/usr/lib/a/inner"},
	}
}

// makeAdoptable makes the parts, and assumes that they were flushed long ago.
func makeAdoptable(t tb, home string) {
	t.Helper()
	for _, p := range adoptable(home) {
		for _, err := range []error{os.Mkdir(p.Dir, 0o750),
			os.WriteFile(filepath.Join(p.Dir, "file"), []byte(p.Path), 0o640)} {
			if err != nil {
				t.Fatalf("%v", err)
			}
		}
	}
}

// live goes through what a store is used for: each kind of layer is made, finalized, merged and
// removed. What is acknowledged is noted at once.
func live(t *testing.T, s *Store, home string, a *acked, unsync func(dir string)) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	finalize := func(id timeline.LayerID) {
		t.Helper()
		got, err := s.Finalize(ctx, id)
		must(err)
		a.finalized[id] = got.Digest
	}
	remove := func(id timeline.LayerID) {
		t.Helper()
		delete(a.finalized, id)
		a.removed[id] = true
		must(s.Remove(ctx, id))
	}
	const base, one, merged = timeline.LayerID("00000000000000b0"), timeline.LayerID("00000000000000c1"),
		timeline.LayerID("00000000000000e1")
	src := filepath.Join(home, "src")
	must(os.Mkdir(src, 0o755))
	smallTree(t, src)
	_, err := s.ImportDir(ctx, base, src, ImportOptions{})
	must(err)
	finalize(base)
	parts := []rootspec.Part{{Dir: src, Path: "/"}}
	index, err := s.Scan(ctx, parts, true)
	must(err)
	must(os.WriteFile(filepath.Join(src, "dir/file"), []byte("changed"), 0o644))
	must(os.Remove(filepath.Join(src, "gone")))
	_, err = s.Capture(ctx, one, CaptureInput{Parts: parts, Index: index, Plain: true})
	must(err)
	finalize(one)
	must(s.Merge(ctx, merged, []timeline.LayerID{one, base}))
	finalize(merged)
	remove(one)

	makeAdoptable(t, home)
	for _, p := range adoptable(home) {
		must(os.Mkdir(filepath.Join(p.Dir, "new"), 0o755))
		must(os.WriteFile(filepath.Join(p.Dir, "new", "file"), []byte("just written"), 0o644))
		unsync(filepath.Join(p.Dir, "new"))
	}
	a.adopting = true
	must(s.Adopt(ctx, adoptedID, adoptable(home)))
	got, err := s.Finalize(ctx, adoptedID)
	must(err)
	a.adopting, a.finalized[adoptedID] = false, got.Digest
	remove(base)
}

// left opens what a crash left of a home, and fails unless all that was finalized is there, no
// layer has a manifest that it does not agree with, and an adoption can be undone.
func left(t *testing.T, what, home string, a acked) {
	t.Helper()
	ctx := t.Context()
	s, err := Open(ctx, vfs.OS(), filepath.Join(home, "layers"))
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	defer s.Close()
	if names, err := os.ReadDir(filepath.Join(home, "layers", "tmp")); err != nil || len(names) > 0 {
		t.Errorf("%s: tmp holds %v, %v", what, names, err)
	}
	for id, digest := range a.finalized {
		if _, got, err := s.Manifest(ctx, id); err != nil || got != digest {
			t.Errorf("%s: layer %s is %s, want %s; %v", what, id, got, digest, err)
		}
	}
	if a.adopting {
		if err := s.Unadopt(ctx, adoptedID, adoptable(home)); err != nil {
			t.Errorf("%s: undo the adoption: %v", what, err)
		}
		foundAdoptable(t, what, home)
	}
	all, err := s.List(ctx)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for _, id := range all {
		if _, kept := a.finalized[id]; !kept && !s.Finalized(id) || a.removed[id] {
			continue // after a power loss none that is not finalized is used, nor one without a record
		}
		if err := s.Verify(ctx, id); err != nil {
			t.Errorf("%s: layer %s: %v", what, id, err)
		}
	}
}

// foundAdoptable fails unless the parts of the adoption are where they were.
func foundAdoptable(t *testing.T, what, home string) {
	t.Helper()
	for _, p := range adoptable(home) {
		if text, err := os.ReadFile(filepath.Join(p.Dir, "file")); err != nil || string(text) != p.Path {
			t.Errorf("%s: part %s holds %q, %v", what, p.Path, text, err)
		}
	}
}

// losses returns the crashes that are tried before each call.
func losses(seed, k int) []vfs.Crash {
	return []vfs.Crash{vfs.Kill, {}, {Names: 100}, vfs.PowerLoss(uint64(1000*seed + k)),
		{Names: 50, Data: 100, Seed: uint64(1000*seed + k)}}
}

// TestCrash_KeepsFinalizedLayers lets the process die at any time, with or without a power loss: finalized layers
// remain, and parts that were being adopted can be moved back.
func TestCrash_KeepsFinalizedLayers(t *testing.T) {
	t.Parallel()
	t.Run("whiteouts", func(t *testing.T) { crashes(t, false) })
	t.Run("removals as files", func(t *testing.T) { crashes(t, true) })
}

func crashes(t *testing.T, byFiles bool) {
	t.Parallel()
	seeds := 3
	if testing.Short() {
		seeds = 1
	}
	first, step := looptest.Sample(t, 7)
	for seed := range seeds {
		home, clones := t.TempDir(), t.TempDir()
		disk := vfs.NewCrashable(home)
		a := acked{finalized: map[timeline.LayerID]string{}, removed: map[timeline.LayerID]bool{}}
		calls := 0
		type crash struct {
			what, home string
			acked
		}
		var all []crash
		disk.OnCall = func(op vfs.Op) {
			if calls++; calls%step != first {
				return
			}
			for i, how := range losses(seed, calls) {
				at := filepath.Join(clones, fmt.Sprint(calls, "-", i))
				if err := disk.CrashClone(at, how); err != nil {
					t.Errorf("%v", err)
					continue
				}
				then := a
				then.finalized, then.removed = maps.Clone(a.finalized), maps.Clone(a.removed)
				all = append(all,
					crash{fmt.Sprintf("seed %d, a crash before call %d, %s, which leaves %+v", seed, calls, op, how), at, then})
			}
		}
		s, err := Open(t.Context(), disk, filepath.Join(home, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		s.byFiles = byFiles
		live(t, s, home, &a, func(dir string) {
			if err := disk.Unsync(dir); err != nil {
				t.Fatal(err)
			}
		})
		if err := errors.Join(s.Close(), disk.Close()); err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			left(t, c.what, c.home, c.acked)
			if t.Failed() {
				return
			}
		}
		t.Logf("seed %d: %d calls", seed, calls)
	}
}

// TestCrash_UnadoptLosesNothing checks that an adoption can be undone again after a power failure at any point of
// undoing it.
func TestCrash_UnadoptLosesNothing(t *testing.T) {
	t.Parallel()
	for seed := range 10 {
		home, clones := t.TempDir(), t.TempDir()
		makeAdoptable(t, home)
		disk := vfs.NewCrashable(home)
		s, err := Open(t.Context(), disk, filepath.Join(home, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Adopt(t.Context(), adoptedID, adoptable(home)); err != nil {
			t.Fatal(err)
		}
		calls := 0
		disk.OnCall = func(op vfs.Op) {
			calls++
			for i, how := range losses(seed, calls) {
				at := filepath.Join(clones, fmt.Sprint(calls, "-", i))
				if err := disk.CrashClone(at, how); err != nil {
					t.Fatal(err)
				}
				left(t, fmt.Sprintf("seed %d, a crash before call %d, %s, which leaves %+v", seed, calls, op, how), at,
					acked{adopting: true})
			}
		}
		if err := s.Unadopt(t.Context(), adoptedID, adoptable(home)); err != nil {
			t.Fatal(err)
		}
		foundAdoptable(t, "undone", home)
		disk.OnCall = nil
		if err := errors.Join(s.Close(), disk.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
