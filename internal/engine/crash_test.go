//go:build linux

package engine

import (
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// acked is what an engine acknowledged: snapshots of sandbox a, and what each has in file f.
type acked struct {
	made   bool              // the sandbox
	all    map[string]string // snapshots of which no deletion was begun
	sealed map[string]string // those of them that survive a power loss
}

func (k acked) clone() acked { return acked{k.made, maps.Clone(k.all), maps.Clone(k.sealed)} }

// crashed is what a crash left of a home.
type crashed struct {
	what, dir string
	power     bool // it was lost
	acked
}

// survives fails unless an engine opens what a crash left, has all that was acknowledged, finds
// no damage, and goes on.
func (c crashed) survives(t *testing.T) {
	h := &home{t: t, dir: c.dir, boxes: &fakeBoxes{boxes: map[string]*fakeBox{}}, boot: "boot-1", now: time.Now(), fs: vfs.OS(), book: unflushed{vfs.OS()}}
	want := c.all
	if c.power {
		h.boot, want = "boot-2", c.sealed
	}
	t.Log(c.what)
	h.open()
	defer h.close()
	if res, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil || len(res.Damage) > 0 {
		t.Errorf("%s: %+v, %v", c.what, res.Damage, err)
	}
	if !c.made {
		return
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatalf("%s: %v", c.what, err)
	}
	history, err := h.DB.History(ctx, rec.ID)
	if err != nil {
		t.Fatalf("%s: %v", c.what, err)
	}
	for id, text := range want {
		if _, ok := history.Snapshots[timeline.SnapshotID(id)]; !ok {
			t.Errorf("%s: snapshot %s is lost", c.what, id)
			continue
		}
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: id}); err != nil {
			t.Errorf("%s: check out %s: %v", c.what, id, err)
		} else if got := h.tree("a")["f"]; got != text {
			t.Errorf("%s: snapshot %s has %q, want %q", c.what, id, got, text)
		}
	}
	h.run("a", "write", "f", "afterwards")
	if res, err := h.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
		t.Errorf("%s: gc: %+v, %v", c.what, res, err)
	}
	if res, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil || len(res.Damage) > 0 {
		t.Errorf("%s: afterwards: %+v, %v", c.what, res.Damage, err)
	}
}

// Whenever the daemon or the machine dies, from the first start on, the next engine opens the
// home and has what was acknowledged; after a power loss, what of it was sealed.
func TestCrash_KeepsWhatWasAcknowledged(t *testing.T) {
	every := 5
	if testing.Short() {
		every = 25
	}
	h := newHome(t)
	h.close()
	h.dir = filepath.Join(t.TempDir(), "home")
	clones := t.TempDir()
	if err := vfs.MkdirAll(vfs.OS(), h.dir); err != nil {
		t.Fatal(err)
	}
	disk := vfs.NewCrashable(h.dir)
	h.fs, h.book, h.disk = disk, disk, disk
	var mu sync.Mutex // guards now
	now := acked{all: map[string]string{}, sealed: map[string]string{}}
	note := func(fn func(k *acked)) {
		mu.Lock()
		defer mu.Unlock()
		fn(&now)
	}
	var all []crashed
	calls := 0
	disk.OnCall = func(op vfs.Op) {
		if calls++; calls%every != 1 {
			return
		}
		mu.Lock()
		then := now.clone()
		mu.Unlock()
		for i, how := range []vfs.Crash{vfs.Kill, {InOrder: true}, {Names: 100}, vfs.PowerLoss(uint64(calls))} {
			how.InOrder = true // see BUG(layer) of Store.Adopt
			c := crashed{fmt.Sprintf("a crash before call %d, %s, which leaves %+v", calls, op, how), filepath.Join(clones, fmt.Sprint(calls, "-", i)), i > 0, then}
			if err := disk.CrashClone(c.dir, how); err != nil {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			all = append(all, c)
		}
	}
	h.open()
	h.onDir("a")
	note(func(k *acked) { k.made = true })
	write := func(text string) string {
		id := h.run("a", "write", "f", text).Head
		note(func(k *acked) { k.all[id] = text })
		return id
	}
	seal := func() {
		if err := h.sealAll(ctx); err != nil {
			t.Fatal(err)
		}
		note(func(k *acked) { k.sealed = maps.Clone(k.all) })
	}
	write("one")
	middle := write("two")
	write("three")
	seal()
	note(func(k *acked) { delete(k.all, middle); delete(k.sealed, middle) })
	if _, err := h.DeleteSnapshot(ctx, "a", middle); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	write("four")
	if _, err := h.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
		t.Fatal(err)
	}
	seal()
	write("five")
	h.close()
	disk.OnCall = nil
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls, %d crashes", calls, len(all))
	for _, c := range all {
		if c.survives(t); t.Failed() {
			return
		}
	}
}
