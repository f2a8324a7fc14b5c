//go:build linux

package engine

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// onDir makes a sandbox from a small directory.
func (h *home) onDir(name string) wire.Sandbox {
	h.t.Helper()
	src := h.t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "base"), []byte("base"), 0o644); err != nil {
		h.t.Fatal(err)
	}
	sb, err := h.Create(ctx, wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: src}},
		func(wire.Progress) {})
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// A power loss that takes the first snapshot of a sandbox leaves nothing of it: commands say so,
// and it can be removed.
func TestLostSandbox_CanOnlyBeRemoved(t *testing.T) {
	h := newHome(t)
	sb := h.onDir("a")
	layers, err := h.stacks.Below(ctx, timeline.SnapshotID(sb.Head))
	if err != nil || len(layers) == 0 {
		t.Fatalf("%v, %v", layers, err)
	}
	for _, id := range layers {
		if _, err := h.DB.LoseLayer(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	h.stacks.Rerouted()
	h.goesOn("a power loss", true)
	if rec, err := h.DB.Sandbox(ctx, "a"); !fault.Is(err, fault.NotFound) {
		t.Errorf("it is still there: %+v, %v", rec, err)
	}
}

// TestDeleteSnapshot_FinalizesReplacementLayer checks that the layer that a deletion merges is
// finalized before it replaces finalized layers, which are then gone.
func TestDeleteSnapshot_FinalizesReplacementLayer(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "one")
	middle := h.run("a", "write", "g", "two").Head
	h.run("a", "write", "f", "three")
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	defer h.Hold()() // the background keeps its hands off
	if _, err := h.DeleteSnapshot(ctx, "a", middle); err != nil {
		t.Fatal(err)
	}
	left, err := h.DB.UnfinalizedLayers(ctx)
	for _, l := range left {
		if !l.Merged {
			t.Errorf("layer %s is not finalized, and nothing else has what it holds", l.ID)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestPowerLoss_DropsUnfinalizedSnapshot(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	finalized := h.run("a", "write", "f", "one").Head
	if _, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil { // finalizes
		t.Fatal(err)
	}
	torn := h.run("a", "write", "f", "two").Head
	// As if the power failed before the background came to it.
	for _, b := range h.boxes.boxes {
		_ = b.Stop(ctx, 0)
	}
	h.close()
	db, err := sql.Open("sqlite", filepath.Join(h.dir, "coppice.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "UPDATE layers SET sealed=0 WHERE id IN (SELECT layer FROM routes WHERE top=?)",
		torn); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	h.boot = "boot-2"
	h.open()

	head, err := h.Head(ctx, "a")
	if err != nil || head != finalized {
		t.Fatalf("head is %s, %v; want %s", head, err, finalized)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: torn}); !fault.Is(err, fault.NotFound) {
		t.Errorf("the torn snapshot can still be reached: %v", err)
	}
	st, err := h.Status(ctx, "a")
	if err != nil || !strings.Contains(strings.Join(st.Notices, "\n"), "power") {
		t.Errorf("status does not say it: %v, %v", st.Notices, err)
	}
	if kept, _ := filepath.Glob(filepath.Join(h.dir, "lost", "*", "fs")); len(kept) != 1 {
		t.Errorf("lost/ holds %v", kept)
	}
	if got := h.tree("a")["f"]; got != "two" {
		t.Errorf("the live root was kept, and shows %q", got)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: finalized}); err != nil {
		t.Fatal(err)
	}
	if got := h.tree("a")["f"]; got != "one" {
		t.Errorf("the finalized snapshot shows %q", got)
	}
	if r, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil || len(r.Damage) > 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}
}

// TestVerify_DetectsReplacedLayer exchanges two layers together with their manifests: each is
// consistent in itself, and only its place is wrong.
func TestVerify_DetectsReplacedLayer(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	one := h.run("a", "write", "f", "one").Head
	two := h.run("a", "write", "f", "two").Head
	if r, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil || len(r.Damage) > 0 {
		t.Fatalf("verify: %+v, %v", r, err)
	}
	dir := func(head string) string {
		line, err := h.DB.Lineage(ctx, timeline.SnapshotID(head))
		if err != nil {
			t.Fatal(err)
		}
		st, err := line.Stack(timeline.SnapshotID(head))
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Dir(h.Layers.Dir(st[0]))
	}
	if err := unix.Renameat2(unix.AT_FDCWD, dir(one), unix.AT_FDCWD, dir(two), unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	r, err := h.Verify(ctx, "", func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range r.Damage {
		found = append(found, d.Snapshot)
	}
	slices.Sort(found)
	want := []string{one, two}
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("damaged are %v, found %v", want, r.Damage)
	}
}

func TestLostIndex_LosesNoChange(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "one")
	before := h.run("a", "write", "g", "one").Head
	h.close()
	files, err := filepath.Glob(filepath.Join(h.dir, "sandboxes", "*", "index.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("index files: %v, %v", files, err)
	}
	if err := os.Truncate(files[0], 10); err != nil {
		t.Fatal(err)
	}
	h.open()
	x := h.run("a", "write", "f", "two")
	if !x.Changed {
		t.Fatal("no snapshot was taken")
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: before}); err != nil {
		t.Fatal(err)
	}
	if got := h.tree("a"); got["f"] != "one" || got["g"] != "one" {
		t.Errorf("the snapshot before shows %v", got)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: x.Head}); err != nil {
		t.Fatal(err)
	}
	if got := h.tree("a"); got["f"] != "two" || got["g"] != "one" || got["base"] != "base" {
		t.Errorf("the snapshot after shows %v", got)
	}
}

func TestRecovery_SweepsUnknownLayers(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.close()
	stray := filepath.Join(h.dir, "layers", "0123456789abcdef", "fs")
	gone := filepath.Join(h.dir, "sandboxes", "0123456789ab", "live", "1")
	for _, d := range []string{stray, gone} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.open()
	for _, d := range []string{stray, gone} {
		if _, err := os.Lstat(d); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", d, err)
		}
	}
}

// TestMountedLayers_StayUntilReboot keeps layers that a live root was mounted through until
// the host is rebooted.
func TestMountedLayers_StayUntilReboot(t *testing.T) {
	h := newHome(t)
	sb := h.onDir("a")
	h.run("a", "write", "f", "one")
	id := timeline.LayerID("0123456789abcdef")
	old := filepath.Join(h.dir, "layers", string(id), "fs")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(h.dir, "sandboxes", sb.ID, "mounted")
	if err := h.mounts.note(timeline.SandboxID(sb.ID), []timeline.LayerID{id}); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	if _, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil { // its monitor runs
		t.Fatal(err)
	}
	if _, err := os.Lstat(old); err != nil {
		t.Fatalf("the layer below a mount is gone: %v", err)
	}
	// Torn by a power loss.
	if err := os.Truncate(note, 3); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.boot = "boot-2"
	h.open()
	for _, gone := range []string{note, old} {
		if _, err := os.Lstat(gone); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", gone, err)
		}
	}
}

func TestMerge_KeepsChainsShallow(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	n := 300
	if testing.Short() {
		n = 80
	}
	heads := make([]string, n)
	for i := range n {
		heads[i] = h.run("a", "write", "f"+itoa(i%7), itoa(i)).Head
	}
	if err := h.Merge(ctx); err != nil {
		t.Fatal(err)
	}
	ids, err := h.stacks.Below(ctx, timeline.SnapshotID(heads[n-1]))
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) > 30 {
		t.Errorf("%d snapshots are mounted through %d layers", n, len(ids))
	}
	for _, i := range []int{0, n / 3, n - 1} {
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: heads[i]}); err != nil {
			t.Fatal(err)
		}
		if got := h.tree("a")["f"+itoa(i%7)]; got != itoa(i) {
			t.Errorf("snapshot %d shows %q", i, got)
		}
	}
}

func TestLostDatabase_KeepsLayers(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.close()
	for _, f := range []string{"coppice.db", "coppice.db-wal", "coppice.db-shm"} {
		if err := os.Remove(filepath.Join(h.dir, f)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	db, err := meta.Open(ctx, filepath.Join(h.dir, "coppice.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(h.dir, "layers"))
	if err != nil {
		t.Fatal(err)
	}
	defer layers.Close()
	if _, err := Open(ctx,
		Config{Home: h.dir, DB: db, Layers: layers, Boxes: h.boxes, BootID: h.boot}); !fault.Is(err, fault.Corrupt) {
		t.Fatalf("opened without its database: %v", err)
	}
	if left, err := layers.List(ctx); err != nil || len(left) == 0 {
		t.Errorf("the layers are gone: %v, %v", left, err)
	}
}

// TestRecovery_RemovesIndexOfEarlierGeneration kills a daemon in an undo, between storing the
// new HEAD and removing the old one's index.
func TestRecovery_RemovesIndexOfEarlierGeneration(t *testing.T) {
	h := newHome(t)
	h.close()
	h.driver = "overlay"
	h.open()
	h.onDir("a")
	h.run("a", "write", "f", "1")
	files, _ := filepath.Glob(filepath.Join(h.dir, "sandboxes", "*", "index.*"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	old, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Undo(ctx, "a", wire.UndoRequest{}); err != nil {
		t.Fatal(err)
	}
	h.close()
	if err := os.WriteFile(files[0], old, 0o600); err != nil { // the kill -9 was before the drop
		t.Fatal(err)
	}
	h.open()
	if _, err := h.Redo(ctx, "a", wire.RedoRequest{}); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	h.close()
	h.open()
	h.run("a", "write", "g", "2")
	all := h.told(h.id("a"), format.KindExit)
	for _, c := range all[len(all)-1].Body.(*format.Exit).Changes {
		if c.Change == "removed" {
			t.Errorf("the snapshot of a command that wrote g says that %s is %s", c.Path, c.Change)
		}
	}
}
