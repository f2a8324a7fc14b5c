//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// clock is a time that a test sets while the background reads it.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time           { return time.Unix(0, c.ns.Load()).UTC() }
func (c *clock) advance(by time.Duration) { c.ns.Add(int64(by)) }

// newClockedHome returns a home whose clock advances only when a test advances it.
func newClockedHome(t testing.TB) (*home, *clock) {
	return newClockedHomeAt(t, time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC))
}

// newClockedHomeAt is newClockedHome with a clock that begins at a time.
func newClockedHomeAt(t testing.TB, at time.Time) (*home, *clock) {
	c := new(clock)
	c.ns.Store(at.UnixNano())
	h := newHome(t)
	h.close()
	h.clock = c.now
	h.open()
	return h, c
}

// root returns the live root of a sandbox.
func (h *home) root(name string) string {
	h.t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(rec.ID)].root
}

func (h *home) thinNow(name string) {
	h.t.Helper()
	rec, err := h.DB.Sandbox(ctx, name)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.Thin(ctx, rec.ID); err != nil {
		h.t.Fatal(err)
	}
}

func TestRetention_ThinsAutomaticSnapshots(t *testing.T) {
	t.Parallel()
	h, clock := newClockedHome(t)
	if _, err := h.Create(ctx,
		wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}, KeepRecent: 3,
			KeepForMS: 60_000}, ignore); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	wrote := map[timeline.SnapshotID]int{}
	var autos []timeline.SnapshotID
	kept := map[timeline.SnapshotID]string{}
	for i := range 240 { // 40 minutes, one snapshot every 10 s
		clock.advance(10 * time.Second)
		h.behind("a", "f"+itoa(i%5), itoa(i))
		switch i % 60 {
		case 7:
			res, err := h.Mark(ctx, "a", wire.MarkRequest{Label: "m" + itoa(i)})
			if err != nil {
				t.Fatal(err)
			}
			kept[timeline.SnapshotID(res.Node)], wrote[timeline.SnapshotID(res.Node)] = "mark", i
			continue
		case 17:
			x := h.run("a", "true")
			kept[timeline.SnapshotID(x.Snapshot)], wrote[timeline.SnapshotID(x.Snapshot)] = "exec", i
			continue
		}
		id := h.auto("a").id
		wrote[id], autos = i, append(autos, id)
		switch {
		case i%60 == 23:
			kept[id] = "tag"
			if _, err := h.SetTag(ctx, "a", "t"+itoa(i), string(id)); err != nil {
				t.Fatal(err)
			}
		case i == 25:
			kept[id] = "fork point"
			if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"fork"}, At: string(id)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := h.Undo(ctx, "a", wire.UndoRequest{N: 1}); err != nil {
		t.Fatal(err)
	}
	kept[autos[len(autos)-1]] = "what can be redone"
	h.thinNow("a")
	hist := func() map[timeline.SnapshotID]wire.Snapshot {
		log, err := h.Log(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		out := map[timeline.SnapshotID]wire.Snapshot{}
		for _, n := range log.Nodes {
			out[timeline.SnapshotID(n.ID)] = n
		}
		return out
	}
	left := hist()
	for id, why := range kept {
		if _, ok := left[id]; !ok {
			t.Errorf("%s was removed: it was %s", id, why)
		}
	}
	// One snapshot a minute, for 40 minutes, and those that are kept for other reasons.
	if n := len(left); n < 40 || n > 40+len(kept)+12 {
		t.Errorf("%d are left", n)
	}
	for _, id := range autos[len(autos)-6:] {
		if _, ok := left[id]; !ok {
			t.Errorf("%s was removed, and is recent", id)
		}
	}
	h.thinNow("a")
	if again := hist(); len(again) != len(left) {
		t.Errorf("a second thinning left %d of %d", len(again), len(left))
	}
	// Snapshots that are left show the same files as before.
	for id := range left {
		i, ok := wrote[id]
		if !ok || i%4 > 0 && kept[id] == "" {
			continue
		}
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: string(id)}); err != nil {
			t.Fatal(err)
		}
		got := h.tree("a")
		for f := range 5 {
			newest := i - (i-f+5)%5
			want := ""
			if newest >= 0 {
				want = itoa(newest)
			}
			if got["f"+itoa(f)] != want {
				t.Errorf("snapshot %d shows %q in f%d, want %q", i, got["f"+itoa(f)], f, want)
			}
		}
	}
	if got := h.tree("fork"); got["f0"] != "25" || got["f4"] != "24" {
		t.Errorf("the fork shows %v", got)
	}
	if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	if res, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil || len(res.Removed) > 0 || res.Layers > 0 {
		t.Errorf("garbage is left: %+v, %v", res, err)
	}
}

func TestThinning_RunsAutomatically(t *testing.T) {
	t.Parallel()
	h, clock := newClockedHome(t)
	if _, err := h.Create(ctx,
		wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}, KeepRecent: 1,
			KeepForMS: 1}, ignore); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	for i := range upkeep.ThinEvery + 2 {
		clock.advance(2 * time.Second)
		h.behind("a", "f", itoa(i))
		h.auto("a")
	}
	got := collect(t, h.Bus, "a", 0, wire.EventDeleted)
	if ev := got[len(got)-1]; ev.Detail != "retention" || ev.Cause != "auto" || ev.Snapshot == "" {
		t.Errorf("%+v", ev)
	}
}

// meanwhile is a Recorder that records nothing, and calls do before snapshots are dropped.
type meanwhile struct {
	do  func()
	err error // the error of the drop
}

func (m *meanwhile) Drop(ctx context.Context, _ upkeep.Dropped, drop func(context.Context) error) error {
	m.do()
	m.err = drop(ctx)
	return m.err
}

// dropBeside drops snapshots of a sandbox, and calls do between the plan and its execution. It returns the error of
// the execution.
func (h *home) dropBeside(id timeline.SandboxID, run []timeline.SnapshotID, do func()) error {
	h.t.Helper()
	c := upkeepConfig(h.Engine)
	m := &meanwhile{do: do}
	c.Recorder = m
	err := upkeep.New(c).Drop(ctx, id, func(*meta.Sandbox, *timeline.History, upkeep.Needed) []timeline.SnapshotID {
		return run
	})
	if err != nil && m.err == nil {
		h.t.Fatal(err)
	}
	return m.err
}

// TestThinning_SparesSnapshotsInUse checks that a run of snapshots that changed between the plan and its execution is
// not dropped.
func TestThinning_SparesSnapshotsInUse(t *testing.T) {
	t.Parallel()
	h, clock := newClockedHome(t)
	h.onDir("a")
	h.run("a", "true")
	var ids []timeline.SnapshotID
	for i := range 8 {
		clock.advance(time.Second)
		h.behind("a", "f", itoa(i))
		ids = append(ids, h.auto("a").id)
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	count := func() int {
		log, err := h.Log(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		return len(log.Nodes)
	}
	before := count()
	for name, use := range map[string]func(id timeline.SnapshotID) error{
		"tagged": func(id timeline.SnapshotID) error { _, err := h.SetTag(ctx, "a", "t", string(id)); return err },
		"deleted": func(id timeline.SnapshotID) error {
			_, err := h.DeleteSnapshot(ctx, "a", string(id))
			before--
			return err
		},
		"forked": func(id timeline.SnapshotID) error {
			_, err := h.Fork(ctx, "a", wire.ForkRequest{N: 1, At: string(id)})
			return err
		},
	} {
		at := map[string]int{"tagged": 1, "deleted": 3, "forked": 5}[name]
		run := []timeline.SnapshotID{ids[at+1], ids[at]}
		err := h.dropBeside(rec.ID, run, func() {
			if err := use(ids[at]); err != nil {
				t.Fatal(err)
			}
		})
		if !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: %v", name, err)
		}
		if n := count(); n != before {
			t.Errorf("%s: %d are left of %d", name, n, before)
		}
	}
	// Thinning does not wait for a long read of layers.
	err = h.dropBeside(rec.ID, ids[:1], h.shape.RLock)
	h.shape.RUnlock()
	if err == nil || !strings.Contains(err.Error(), upkeep.ErrBusy.Error()) {
		t.Errorf("while layers are read: %v", err)
	}
	if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// TestRetention_BoundsAutomaticSnapshots simulates an agent that writes for nine days, with the real store and a
// simulated clock: the number of snapshots and their bytes level off. Package timeline tests the plan alone, with a
// snapshot every two seconds.
func TestRetention_BoundsAutomaticSnapshots(t *testing.T) {
	t.Parallel()
	step, days := 5*time.Minute, 9
	if looptest.Race || testing.Short() {
		step, days = 15*time.Minute, 2
	}
	h, clock := newClockedHome(t)
	if _, err := h.Create(ctx,
		wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}, KeepRecent: 20},
		ignore); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	root := h.root("a")
	var counts []int
	var sizes []int64
	perDay := int(24 * time.Hour / step)
	for i := range days * perDay {
		clock.advance(step)
		// One of four files is rewritten, one file is added, and one of the added files is removed.
		text := strings.Repeat(fmt.Sprintf("%6d of %d\n", i, days*perDay), 4096)
		for name, text := range map[string]string{"f" + itoa(i%4): text, "new" + itoa(i): text[:1024]} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if i >= 4 {
			if err := os.Remove(filepath.Join(root, "new"+itoa(i-4))); err != nil {
				t.Fatal(err)
			}
		}
		if !h.auto("a").changed {
			t.Fatal("nothing was captured")
		}
		if (i+1)%perDay == 0 {
			h.thinNow("a")
			log, err := h.Log(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			counts = append(counts, len(log.Nodes))
			sizes = append(sizes, onDisk(t, filepath.Join(h.dir, "layers")))
		}
	}
	t.Logf("%d snapshots were taken in %d days; at the end of each day there were %v, of %v bytes on the disk",
		days*perDay, days, counts, sizes)
	// All snapshots of a day, since they are rarer than one a minute, then one an hour for a week, and one a day before
	// that.
	for day, n := range counts {
		if most := perDay + 24*min(day, 6) + max(0, day-6) + 8; n > most {
			t.Errorf("%d snapshots at the end of day %d, more than %d", n, day+1, most)
		}
	}
	if last := days - 1; last > 7 && (counts[last]-counts[last-1] > 3 || sizes[last] > sizes[last-1]*105/100) {
		t.Errorf("they do not level off: %v, %v bytes", counts, sizes)
	}
	if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	if res, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil || len(res.Removed) > 0 || res.Layers > 0 {
		t.Errorf("garbage is left: %+v, %v", res, err)
	}
}

// onDisk returns the bytes that a directory takes on the disk, counting hard links once.
func onDisk(t *testing.T, dir string) (n int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // merged and removed meanwhile
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = true
			n += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
