//go:build linux

package engine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// acked is what an engine acknowledged.
type acked struct {
	boxes     map[string]bool   // the names of sandboxes
	all       map[string]string // snapshots of sandbox a of which no deletion was begun: what file f has
	finalized map[string]string // those of them that survive a power loss
	live      map[string]string // what file f has in live roots, where that is sure
	tried     map[string]bool   // what a write of f was begun with
	told      []string          // the records of the ledger, in the order of its log
}

func newAcked() acked {
	return acked{boxes: map[string]bool{}, all: map[string]string{}, finalized: map[string]string{},
		live: map[string]string{}, tried: map[string]bool{"": true}}
}

func (k acked) clone() acked {
	return acked{maps.Clone(k.boxes), maps.Clone(k.all), maps.Clone(k.finalized), maps.Clone(k.live), maps.Clone(k.tried),
		slices.Clone(k.told)}
}

// log gives all records of the ledger in the order of its log, in a form that can be compared.
func (h *home) log() (all []string) {
	h.t.Helper()
	var records []*format.Record
	for r, err := range h.Ledger.After(ctx, 0) {
		if err != nil {
			h.t.Fatal(err)
		}
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b *format.Record) int { return cmp.Compare(a.Leaf, b.Leaf) })
	for _, r := range records {
		all = append(all, fmt.Sprint(r.Leaf, " ", r.Sandbox, " ", r.Seq, " ", r.Kind(), " after ", r.Prev))
	}
	return all
}

// holds fails unless the engine, which was opened after a failure, has all that was acknowledged before,
// finds no damage, shows nothing half made, and keeps working. After a power loss, only finalized snapshots
// have to be there.
func (h *home) holds(what string, k acked, power bool) {
	t := h.t
	t.Helper()
	verify := func(when string) {
		t.Helper()
		if res, err := h.Verify(ctx, "", ignore); err != nil || len(res.Damage) > 0 {
			t.Errorf("%s: %s: %+v, %v", what, when, res.Damage, err)
		}
	}
	verify("at the start")
	now := h.log()
	for i, one := range k.told {
		if i >= len(now) || now[i] != one {
			t.Errorf("%s: record %q is not where it was in the ledger: %q", what, one, now)
			break
		}
	}
	for name := range k.boxes {
		if _, err := h.DB.Sandbox(ctx, name); err != nil {
			t.Errorf("%s: sandbox %s: %v", what, name, err)
		}
	}
	for name, text := range k.live {
		if got := h.tree(name)["f"]; got != text {
			t.Errorf("%s: the live root of %s has %q, want %q", what, name, got, text)
		}
	}
	want := k.all
	if power {
		want = k.finalized
	}
	if k.boxes["a"] {
		h.has(what, want, k.tried)
		h.goesOn(what, power && len(want) == 0)
	}
	if res, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil {
		t.Errorf("%s: gc: %+v, %v", what, res, err)
	}
	verify("afterwards")
}

// goesOn fails unless a command runs in sandbox a. If it may be lost, since nothing of it was
// finalized, it may refuse that, and is removed.
func (h *home) goesOn(what string, mayBeLost bool) {
	h.t.Helper()
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	if !rec.Lost {
		h.run("a", "write", "f", "afterwards")
		return
	}
	_, err = h.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"true"}}, stream{strings.NewReader(""), io.Discard})
	if !mayBeLost || !fault.Is(err, fault.Corrupt) || !strings.Contains(fault.HintOf(err), "coppice rm a") {
		h.t.Errorf("%s: a sandbox that has lost everything: %v", what, err)
	}
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		h.t.Errorf("%s: remove a sandbox that has lost everything: %v", what, err)
	}
}

// has fails unless sandbox a has these snapshots, and others only if they are whole.
func (h *home) has(what string, want map[string]string, tried map[string]bool) {
	t := h.t
	t.Helper()
	history, err := h.DB.History(ctx, h.id("a"))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for id := range history.Snapshots {
		text, ok := want[string(id)]
		got := h.reads("a", string(id), "/f")
		if ok && got != text || !tried[got] {
			t.Errorf("%s: snapshot %s has %q, want %q", what, id, got, text)
		}
	}
	for id, text := range want {
		if _, ok := history.Snapshots[timeline.SnapshotID(id)]; !ok {
			t.Errorf("%s: snapshot %s is lost", what, id)
			continue
		}
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: id}); err != nil {
			t.Errorf("%s: check out %s: %v", what, id, err)
		} else if got := h.tree("a")["f"]; got != text {
			t.Errorf("%s: snapshot %s has %q when checked out, want %q", what, id, got, text)
		}
	}
}

// crashed is what a crash left of a home.
type crashed struct {
	what, dir string
	power     bool // it was lost
	acked
}

// Whenever the daemon or the machine dies, from the first start on, the next engine opens the
// home and has what was acknowledged; after a power loss, what of it was finalized.
func TestCrash_KeepsWhatWasAcknowledged(t *testing.T) {
	every := 20
	switch {
	case os.Getenv("COPPICE_TEST_FULL") != "":
		every = 1
	case testing.Short():
		every = 40
	}
	first, step := looptest.Sample(t, 7)
	h := emptyHome(t)
	clones := t.TempDir()
	disk := vfs.NewCrashable(h.dir)
	h.fs, h.book, h.disk = disk, disk, disk
	var mu sync.Mutex // guards now
	now := newAcked()
	note := func(fn func(k *acked)) {
		told := h.log()
		mu.Lock()
		defer mu.Unlock()
		now.told = told
		fn(&now)
	}
	var all []crashed
	calls := 0
	disk.OnCall = func(op vfs.Op) {
		if calls++; calls%(step*every) != (1+first)%(step*every) {
			return
		}
		mu.Lock()
		then := now.clone()
		mu.Unlock()
		for i, how := range []vfs.Crash{vfs.Kill, {}, {Names: 100}, vfs.PowerLoss(uint64(calls))} {
			c := crashed{fmt.Sprintf("a crash before call %d, %s, which leaves %+v", calls, op, how),
				filepath.Join(clones, fmt.Sprint(calls, "-", i)), i > 0, then}
			if err := disk.CrashClone(c.dir, how); err != nil {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			all = append(all, c)
		}
	}
	h.open()
	h.lives(note)
	h.close()
	disk.OnCall = nil
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d calls, %d crashes", calls, len(all))
	for _, c := range all {
		h.become(c.dir) // the database has absolute paths
		if h.boot = "boot-1"; c.power {
			h.boot = "boot-2"
		}
		h.open()
		h.holds(c.what, c.acked, c.power)
		h.close()
		if t.Failed() {
			return
		}
	}
}

// emptyHome is a home that no engine has opened yet.
func emptyHome(t *testing.T) *home {
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := &home{t: t, dir: dir, boxes: &fakeBoxes{boxes: map[string]*fakeBox{}}, boot: "boot-1", now: time.Now(),
		fs: unflushed{vfs.OS()}, book: unflushed{vfs.OS()}}
	t.Cleanup(h.close)
	return h
}

// become moves another home to the place of this one, where no engine is open, with no box running
// and on a file system that works.
func (h *home) become(dir string) {
	h.t.Helper()
	if err := errors.Join(os.RemoveAll(h.dir), os.Rename(dir, h.dir)); err != nil {
		h.t.Fatal(err)
	}
	h.boxes = &fakeBoxes{boxes: map[string]*fakeBox{}}
	h.fs, h.book, h.disk = unflushed{vfs.OS()}, unflushed{vfs.OS()}, unflushed{vfs.OS()}
}

// lives goes through what an engine is used for. It notes at once what is acknowledged.
func (h *home) lives(note func(func(k *acked))) {
	must := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	write := func(text string) string {
		note(func(k *acked) { k.tried[text] = true })
		id := h.run("a", "write", "f", text).Head
		note(func(k *acked) { k.all[id] = text })
		return id
	}
	finalize := func() {
		must(h.Finalize(ctx))
		note(func(k *acked) { k.finalized = maps.Clone(k.all) })
	}
	note(func(k *acked) { k.tried["afterwards"] = true })
	h.onDir("a")
	note(func(k *acked) { k.boxes["a"] = true })
	write("one")
	middle := write("two")
	write("three")
	finalize()
	note(func(k *acked) { delete(k.all, middle); delete(k.finalized, middle) })
	_, err := h.DeleteSnapshot(ctx, "a", middle)
	must(err)
	_, err = h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}})
	must(err)
	note(func(k *acked) { k.boxes["b"] = true })
	write("four")
	_, err = h.GC(ctx, wire.GCRequest{}, ignore)
	must(err)
	finalize()
	write("five")

	h.run("b", "write", "f", "of b")
	finalize()
	note(func(k *acked) { k.live["b"] = "of b" })
	h.halfAdopted("b")
	h.close()
	h.open() // gives it back
	note(func(*acked) {})
}
