//go:build linux

package engine

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestHistoryModel runs random operations on an engine over real files and
// checks each against plain maps: every snapshot that was ever acknowledged shows
// exactly the tree that was live then, in every sandbox, after checkouts, forks,
// deletions, garbage collection, merges, and the death of the engine.
func TestHistoryModel(t *testing.T) {
	t.Parallel()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; (looptest.Race || testing.Short()) && n%4 != 0 {
			return // all of them run without the race detector, at full length
		}
		m := newModel(t, rt)
		defer m.h.close()
		rt.Repeat(map[string]func(*rapid.T){
			"":         m.check,
			"write":    m.write,
			"remove":   m.remove,
			"rename":   m.rename,
			"commit":   m.commit,
			"checkout": m.checkout,
			"in place": m.inPlace,
			"undo":     m.undo,
			"redo":     m.redo,
			"fork":     m.fork,
			"delete":   m.delete,
			"rm":       m.rm,
			"gc":       m.gc,
			"retain":   m.retain,
			"restart":  m.restart,
			"verify":   m.verify,
		})
	})
}

type tree map[string]string

// model is what the engine must show: the tree of every snapshot, and of every
// sandbox its head, its live tree and what can be redone.
type model struct {
	h     *home
	trees map[string]tree
	live  map[string]*modelBox
	told  map[timeline.SandboxID][]*format.Record // as far as they were read
	n     int
}

type modelBox struct {
	head string
	tree tree
	own  []string // snapshots that it made, oldest first
	redo []string
	from string            // the snapshot that it was forked at
	up   map[string]string // parent of each snapshot in its history
}

var ctx = context.Background()

func newModel(t *testing.T, rt *rapid.T) *model {
	m := &model{h: newHome(t), trees: map[string]tree{}, live: map[string]*modelBox{},
		told: map[timeline.SandboxID][]*format.Record{}}
	src, err := os.MkdirTemp("", "src")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(src)
	if err := os.WriteFile(filepath.Join(src, "base"), []byte("base"), 0o644); err != nil {
		t.Fatal(err)
	}
	sb, err := m.h.Create(ctx,
		wire.CreateRequest{Name: "a", From: wire.Source{Kind: wire.SourceDir, Path: src}, Driver: "auto"},
		func(wire.Progress) {})
	if err != nil {
		rt.Fatal(err)
	}
	m.trees[sb.Head] = tree{"base": "base"}
	m.live["a"] = &modelBox{head: sb.Head, tree: tree{"base": "base"}, up: map[string]string{}}
	return m
}

func (m *model) box(t *rapid.T) (string, *modelBox) {
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(m.live))).Draw(t, "sandbox")
	return name, m.live[name]
}

func (m *model) path(t *rapid.T) string {
	return rapid.SampledFrom([]string{"base", "f", "d/f", "d/g", "d/e/f", "e/f"}).Draw(t, "path")
}

// exec runs a command in both worlds: change is what it does to the tree.
func (m *model) exec(t *rapid.T, change func(tree), cmd ...string) {
	name, b := m.box(t)
	before := maps.Clone(b.tree)
	x := m.h.run(name, cmd...)
	if x.Code == 0 {
		change(b.tree)
	} else if x.Changed {
		b.tree = m.h.tree(name) // it failed half way: whatever is there is the truth
	}
	same := maps.Equal(before, b.tree)
	if x.Changed {
		m.snapshot(b, x.Head)
	} else if !same {
		t.Fatalf("%q in %s changed the tree, and no snapshot was taken", cmd, name)
	}
	if x.Head != b.head {
		t.Fatalf("head of %s is %s, not %s", name, x.Head, b.head)
	}
}

func (m *model) snapshot(b *modelBox, id string) {
	b.up[id] = b.head
	b.head, b.redo = id, nil
	b.own = append(b.own, id)
	m.trees[id] = maps.Clone(b.tree)
}

func dirsOf(t tree, p string) {
	for d := filepath.Dir(p); d != "."; d = filepath.Dir(d) {
		t[d+"/"] = ""
	}
}

func (m *model) write(t *rapid.T) {
	p := m.path(t)
	m.n++
	text := fmt.Sprint("text ", m.n)
	m.exec(t, func(tr tree) { dirsOf(tr, p); tr[p] = text }, "write", p, text)
}

func (m *model) remove(t *rapid.T) {
	p := rapid.SampledFrom([]string{"base", "f", "d", "d/e", "d/f", "e"}).Draw(t, "path")
	m.exec(t, func(tr tree) {
		maps.DeleteFunc(tr, func(q, _ string) bool { return q == p || strings.HasPrefix(q, p+"/") })
	}, "rm", p)
}

func (m *model) rename(t *rapid.T) {
	from, to := rapid.SampledFrom([]string{"d", "e", "f"}).Draw(t, "from"),
		rapid.SampledFrom([]string{"x", "d/x", "f"}).Draw(t, "to")
	m.exec(t, func(tr tree) {
		moved := tree{}
		for p, c := range tr {
			if p == from || strings.HasPrefix(p, from+"/") {
				moved[to+p[len(from):]] = c
				delete(tr, p)
			}
		}
		maps.Copy(tr, moved)
	}, "mv", from, to)
}

func (m *model) commit(t *rapid.T) {
	name, b := m.box(t)
	r, err := m.h.Commit(ctx, name, "by hand")
	if err != nil {
		t.Fatal(err)
	}
	if r.Changed || r.Head != b.head {
		t.Fatalf("commit after a command took a snapshot: %+v", r)
	}
}

// history is all snapshots that a sandbox can go to.
func (b *modelBox) history() []string {
	return slices.Sorted(func(yield func(string) bool) {
		seen := map[string]bool{b.head: true}
		for id, p := range b.up {
			seen[id], seen[p] = true, true
		}
		for id := range seen {
			if !yield(id) {
				return
			}
		}
	})
}

func (m *model) checkout(t *rapid.T) {
	name, b := m.box(t)
	to := rapid.SampledFrom(b.history()).Draw(t, "to")
	r, err := m.h.Checkout(ctx, name, wire.CheckoutRequest{Node: to})
	if err != nil {
		t.Fatal(err)
	}
	if r.Head != to || r.Kept != "" {
		t.Fatalf("checkout of %s: %+v", to, r)
	}
	b.head, b.tree, b.redo = to, maps.Clone(m.trees[to]), nil
}

// inPlace is a checkout while something runs: the live root stays the same one.
func (m *model) inPlace(t *rapid.T) {
	name, b := m.box(t)
	to := rapid.SampledFrom(b.history()).Draw(t, "to")
	box := m.h.box(name)
	box.procs = 1
	defer func() { box.procs = 0 }()
	r, err := m.h.Checkout(ctx, name, wire.CheckoutRequest{Node: to, InPlace: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Head != to || r.Kept != "" || !r.InPlace || r.Stopped != 0 {
		t.Fatalf("checkout of %s in place: %+v", to, r)
	}
	b.head, b.tree, b.redo = to, maps.Clone(m.trees[to]), nil
	if m.h.box(name) != box {
		t.Fatal("the box was stopped")
	}
	m.unchanged(t, name, b)
}

// unchanged checks that the live root is seen to equal HEAD.
func (m *model) unchanged(t *rapid.T, name string, b *modelBox) {
	d, err := m.h.Diff(ctx, name, wire.DiffRequest{A: "HEAD"})
	if err != nil || len(d.Changes) > 0 {
		t.Fatalf("after a move the live root differs from HEAD: %+v, %v", d.Changes, err)
	}
	c, err := m.h.Commit(ctx, name, "nothing")
	if err != nil || c.Changed || c.Head != b.head {
		t.Fatalf("commit after a move: %+v, %v", c, err)
	}
}

func (m *model) undo(t *rapid.T) {
	name, b := m.box(t)
	r, err := m.h.Undo(ctx, name, wire.UndoRequest{N: 1})
	to := b.up[b.head]
	if to == "" {
		if !fault.Is(err, fault.NotFound) && err == nil {
			m.sync(b, r) // below the first snapshot is its base, which the model does not know
		}
		return
	}
	if err != nil || r.Head != to {
		t.Fatalf("undo to %s: %+v, %v", to, r, err)
	}
	b.redo = append(b.redo, b.head)
	b.head, b.tree = to, maps.Clone(m.trees[to])
}

// sync takes over a head that the model had no name for.
func (m *model) sync(b *modelBox, r wire.MoveResult) {
	m.trees[r.Head] = maps.Clone(b.tree)
	b.up[b.head] = r.Head
	b.redo = append(b.redo, b.head)
	b.head = r.Head
}

func (m *model) redo(t *rapid.T) {
	name, b := m.box(t)
	r, err := m.h.Redo(ctx, name, wire.RedoRequest{})
	if len(b.redo) == 0 {
		if !fault.Is(err, fault.NotFound) {
			t.Fatalf("redo with nothing to redo: %+v, %v", r, err)
		}
		return
	}
	to := b.redo[len(b.redo)-1]
	if err != nil || r.Head != to {
		t.Fatalf("redo to %s: %+v, %v", to, r, err)
	}
	b.redo = b.redo[:len(b.redo)-1]
	b.head, b.tree = to, maps.Clone(m.trees[to])
}

func (m *model) fork(t *rapid.T) {
	if len(m.live) >= 4 {
		t.Skip("enough sandboxes")
	}
	name, b := m.box(t)
	at := rapid.SampledFrom(append(b.history(), "")).Draw(t, "at")
	r, err := m.h.Fork(ctx, name, wire.ForkRequest{At: at, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	if at == "" {
		at = b.head
	}
	f := r.Sandboxes[0]
	m.trees[f.Head] = maps.Clone(m.trees[at])
	nb := &modelBox{head: f.Head, from: at, tree: maps.Clone(m.trees[at]), up: map[string]string{f.Head: at}}
	for id := at; b.up[id] != ""; id = b.up[id] {
		nb.up[id] = b.up[id]
	}
	m.live[f.Name] = nb
}

func (m *model) delete(t *rapid.T) {
	name, b := m.box(t)
	if len(b.own) == 0 {
		t.Skip("it made no snapshot")
	}
	id := rapid.SampledFrom(b.own).Draw(t, "snapshot")
	head, err := m.h.DeleteSnapshot(ctx, name, id)
	if fault.Is(err, fault.Conflict) {
		return // a head, or a live root stands on it
	}
	if err != nil || head != b.head {
		t.Fatalf("delete %s: %s, %v", id, head, err)
	}
	m.forget(b, id)
}

// forget takes a snapshot that b made out of the model.
func (m *model) forget(b *modelBox, id string) {
	for _, o := range m.live {
		for c, p := range o.up {
			if p == id {
				o.up[c] = b.up[id]
			}
		}
		o.redo = slices.DeleteFunc(o.redo, func(r string) bool { return r == id })
		if o != b {
			delete(o.up, id)
		}
	}
	delete(b.up, id)
	delete(m.trees, id)
	b.own = slices.DeleteFunc(b.own, func(o string) bool { return o == id })
}

// retain thins out every history, and checks that nothing goes that is needed.
func (m *model) retain(t *rapid.T) {
	keep := wire.Keep{Last: rapid.IntRange(1, 4).Draw(t, "last")}
	plan, err := m.h.GC(ctx, wire.GCRequest{DryRun: true, Keep: keep}, func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	res, err := m.h.GC(ctx, wire.GCRequest{Keep: keep}, func(wire.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Dropped) != len(res.Dropped) {
		t.Fatalf("%d snapshots were to go, and %d went", len(plan.Dropped), len(res.Dropped))
	}
	for _, n := range res.Dropped {
		for name, o := range m.live {
			if o.head == n.ID || o.from == n.ID || slices.Contains(o.redo, n.ID) {
				t.Fatalf("snapshot %s of %s is dropped, which %s needs", n.ID, n.Sandbox, name)
			}
		}
		m.forget(m.live[n.Sandbox], n.ID)
	}
}

func (m *model) rm(t *rapid.T) {
	if len(m.live) == 1 {
		t.Skip("the last one")
	}
	name, _ := m.box(t)
	if _, err := m.h.Remove(ctx, []string{name}, true); err != nil {
		t.Fatal(err)
	}
	delete(m.live, name)
}

func (m *model) gc(t *rapid.T) {
	if _, err := m.h.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
		t.Fatal(err)
	}
}

// restart opens the home again. The boxes live on, as keepers do.
func (m *model) restart(*rapid.T) {
	m.h.close()
	m.h.open()
}

func (m *model) verify(t *rapid.T) {
	r, err := m.h.Verify(ctx, "", func(wire.Progress) {})
	if err != nil || len(r.Damage) > 0 || r.Unfinalized > 0 {
		t.Fatalf("verify: %+v, %v", r, err)
	}
}

// recorded compares the records of every sandbox with its state.
func (m *model) recorded(t *rapid.T) {
	for name, b := range m.live {
		rec, err := m.h.DB.Sandbox(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if m.told[rec.ID], err = m.h.records(rec.ID, m.told[rec.ID]); err != nil {
			t.Fatal(err)
		}
		told := retell(m.told[rec.ID])
		if told.head != b.head || told.deleted {
			t.Fatalf("by the ledger %s is at %s, and it is at %s; deleted: %v", name, told.head, b.head, told.deleted)
		}
		h, err := m.h.DB.History(ctx, rec.ID)
		if err != nil {
			t.Fatal(err)
		}
		for id, s := range h.Snapshots {
			if s.Sandbox == rec.ID && !told.snapshots[string(id)] {
				t.Fatalf("snapshot %s of %s (%s) is not in the ledger", id, name, s.Cause)
			}
			delete(told.snapshots, string(id))
		}
		if len(told.snapshots) > 0 {
			t.Fatalf("the ledger tells of snapshots %v of %s, which are not there", told.snapshots, name)
		}
	}
}

// check compares one sandbox whole, and all of them in their heads and sets of
// snapshots.
func (m *model) check(t *rapid.T) {
	name, b := m.box(t)
	if got := m.h.tree(name); !maps.Equal(got, b.tree) {
		t.Fatalf("live tree of %s is\n%v\nnot\n%v", name, got, b.tree)
	}
	m.recorded(t)
	for name, b := range m.live {
		log, err := m.h.Log(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if log.Head != b.head {
			t.Fatalf("head of %s is %s, not %s", name, log.Head, b.head)
		}
		known := map[string]bool{}
		for _, n := range log.Nodes {
			known[n.ID] = true
		}
		for _, id := range b.history() {
			if !known[id] {
				t.Fatalf("snapshot %s is missing from the log of %s", id, name)
			}
		}
	}
}
