package meta

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// files is a root file system as a map; in a layer, "" is a whiteout.
type files map[string]string

func (f files) with(layer files) files {
	out := maps.Clone(f)
	for path, v := range layer {
		if v == "" {
			delete(out, path)
		} else {
			out[path] = v
		}
	}
	return out
}

// world is the expected content of the database in plain maps. It has the files of every snapshot, found without any
// route.
type world struct {
	d      *DB
	boxes  map[timeline.SandboxID]timeline.SnapshotID // heads
	owner  map[timeline.SnapshotID]timeline.SandboxID // of every snapshot ever made and not deleted
	parent map[timeline.SnapshotID]timeline.SnapshotID
	files  map[timeline.SnapshotID]files
	layers map[timeline.LayerID]files // as on the disk
	named  int
}

// reachable lists the snapshots that a sandbox's history must contain.
func (w *world) reachable(id timeline.SandboxID) map[timeline.SnapshotID]bool {
	out := map[timeline.SnapshotID]bool{}
	up := func(at timeline.SnapshotID) {
		for ; at != "" && !out[at]; at = w.parent[at] {
			out[at] = true
		}
	}
	up(w.boxes[id])
	for s, owner := range w.owner {
		if owner == id {
			up(s)
		}
	}
	return out
}

// forget removes from the model the snapshots that no sandbox reaches.
func (w *world) forget() {
	alive := map[timeline.SnapshotID]bool{}
	for id := range w.boxes {
		maps.Copy(alive, w.reachable(id))
	}
	for id := range w.owner {
		if !alive[id] {
			delete(w.owner, id)
			delete(w.parent, id)
			delete(w.files, id)
		}
	}
}

func (w *world) remove(t *rapid.T, unused []timeline.LayerID) {
	for _, l := range unused {
		if _, ok := w.layers[l]; !ok {
			t.Fatalf("layer %s is dropped twice", l)
		}
		delete(w.layers, l)
	}
}

// checkOne compares one sandbox, which costs less than all of them.
func (w *world) checkOne(t *rapid.T) {
	if len(w.boxes) > 0 {
		id := w.anyBox(t)
		w.checkBoxes(t, map[timeline.SandboxID]timeline.SnapshotID{id: w.boxes[id]})
	}
}

func (w *world) checkBoxes(t *rapid.T, boxes map[timeline.SandboxID]timeline.SnapshotID) {
	ctx := t.Context()
	if dead := must(w.d.Unreferenced(ctx, ""))(w.tb(t)); len(dead.Snapshots)+len(dead.Layers) > 0 {
		t.Fatalf("left behind: %+v", dead)
	}
	for id, head := range boxes {
		h := must(w.d.History(ctx, id))(w.tb(t))
		want := w.reachable(id)
		if h.Head != head || len(h.Snapshots) != len(want) {
			t.Fatalf("sandbox %s: head %s, want %s; %d snapshots, want %d", id, h.Head, head, len(h.Snapshots), len(want))
		}
		for s := range want {
			if got, ok := h.Snapshots[s]; !ok || got.Parent != w.parent[s] || got.Sandbox != w.owner[s] {
				t.Fatalf("snapshot %s: %+v, want parent %s", s, got, w.parent[s])
			}
			layers, err := must(w.d.Lineage(ctx, s))(w.tb(t)).Stack(s)
			if err != nil {
				t.Fatal(err)
			}
			root := files{"base": "0"}
			for _, l := range slices.Backward(layers) {
				root = root.with(w.layers[l])
			}
			if !maps.Equal(root, w.files[s]) {
				t.Fatalf("snapshot %s holds %v, want %v", s, root, w.files[s])
			}
		}
	}
	recorded := map[timeline.LayerID]bool{}
	for _, l := range must(w.d.Layers(ctx))(w.tb(t)) {
		recorded[l.ID] = true
	}
	if len(recorded) != len(w.layers) {
		t.Fatalf("%d layers are recorded, %d are on the disk", len(recorded), len(w.layers))
	}
	for l := range w.layers {
		if !recorded[l] {
			t.Fatalf("layer %s is on the disk, without a record", l)
		}
	}
}

// tb lets helpers for tests fail a property.
func (w *world) tb(t *rapid.T) testing.TB { return failing{t: t} }

type failing struct {
	testing.TB
	t *rapid.T
}

func (f failing) Helper()           {}
func (f failing) Fatal(args ...any) { f.t.Fatal(args...) }

func (w *world) newLayer(t *rapid.T, content files) timeline.LayerID {
	id := newLayer(w.tb(t))
	w.layers[id] = content
	return id
}

func (w *world) anyBox(t *rapid.T) timeline.SandboxID {
	if len(w.boxes) == 0 {
		t.Skip("no sandbox")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.boxes))).Draw(t, "sandbox")
}

// anySnap picks a snapshot of a sandbox's history.
func (w *world) anySnap(t *rapid.T, id timeline.SandboxID) timeline.SnapshotID {
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.reachable(id)))).Draw(t, "snapshot")
}

func (w *world) create(t *rapid.T, parent timeline.SnapshotID) {
	w.named++
	s := timeline.Snapshot{ID: newSnap(w.tb(t)), Sandbox: newBox(w.tb(t)), Parent: parent, Cause: timeline.CauseFork,
		Created: epoch}
	rec := Sandbox{ID: s.Sandbox, Name: fmt.Sprint("box-", w.named), Created: epoch, Head: s.ID, MountTop: s.ID, Gen: 1}
	if err := w.d.CreateSandbox(t.Context(), rec, s); err != nil {
		t.Fatal(err)
	}
	w.boxes[rec.ID], w.owner[s.ID], w.parent[s.ID] = s.ID, s.Sandbox, parent
	w.files[s.ID] = files{"base": "0"}
	if parent != "" {
		w.files[s.ID] = w.files[parent]
	}
}

// TestDatabase_MatchesModel compares the database with a model under the operations that the engine uses.
func TestDatabase_MatchesModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok(t, must(Open(t.Context(), dir+"/empty.db"))(t).Close())
	empty := must(os.ReadFile(dir + "/empty.db"))(t)
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		path := fmt.Sprint(dir, "/", runs, ".db")
		if err := os.WriteFile(path, empty, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		w := &world{
			d: d, boxes: map[timeline.SandboxID]timeline.SnapshotID{}, owner: map[timeline.SnapshotID]timeline.SandboxID{},
			parent: map[timeline.SnapshotID]timeline.SnapshotID{}, files: map[timeline.SnapshotID]files{},
			layers: map[timeline.LayerID]files{},
		}
		layer := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "base"}),
			rapid.SampledFrom([]string{"", "1", "2"}), 1, 3)
		ctx := t.Context()
		w.create(t, "")
		t.Repeat(map[string]func(*rapid.T){
			"":       w.checkOne,
			"create": func(t *rapid.T) { w.create(t, "") },
			"fork":   func(t *rapid.T) { w.create(t, w.anySnap(t, w.anyBox(t))) },
			"snapshot": func(t *rapid.T) {
				id := w.anyBox(t)
				s := timeline.Snapshot{ID: newSnap(w.tb(t)), Sandbox: id, Parent: w.boxes[id], Cause: timeline.CauseExec,
					Created: epoch}
				below := s.Parent // or any older one, as after the loss of the index
				if up := w.parent[below]; up != "" && rapid.Bool().Draw(t, "older") {
					below = up
				}
				root := w.files[s.Parent].with(layer.Draw(t, "layer"))
				diff := maps.Clone(root)
				for path := range w.files[below] {
					if _, ok := root[path]; !ok {
						diff[path] = ""
					}
				}
				r := timeline.Route{Top: s.ID, Below: below, Layer: w.newLayer(t, diff)}
				if err := d.AddSnapshot(ctx, s, &r, 0, func(r *Sandbox) { r.Head = s.ID }); err != nil {
					t.Fatal(err)
				}
				w.boxes[id], w.owner[s.ID], w.parent[s.ID], w.files[s.ID] = s.ID, id, s.Parent, root
			},
			"checkout": func(t *rapid.T) {
				id := w.anyBox(t)
				to := w.anySnap(t, id)
				if err := d.UpdateSandbox(ctx, id, func(r *Sandbox) error { r.Head, r.MountTop = to, to; return nil }); err != nil {
					t.Fatal(err)
				}
				w.boxes[id] = to
				// A removed sandbox may have taken over snapshots to which only HEAD referred.
				w.remove(t, must(d.DropUnreferenced(ctx, ""))(w.tb(t)))
				w.forget()
			},
			"take over": func(t *rapid.T) {
				id, from := w.anyBox(t), w.anyBox(t)
				top := w.anySnap(t, from)
				if err := d.TakeOver(ctx, id, top); err != nil {
					t.Fatal(err)
				}
				for at, owner := top, w.owner[top]; at != "" && w.owner[at] == owner; at = w.parent[at] {
					w.owner[at] = id
				}
			},
			"merge": func(t *rapid.T) {
				line := must(d.Lineage(ctx, w.boxes[w.anyBox(t)]))(w.tb(t))
				for _, top := range slices.Sorted(maps.Keys(line.Routes)) {
					for _, r := range line.Routes[top] {
						for _, under := range line.Routes[r.Below] {
							if rapid.IntRange(0, 9).Draw(t, "merge") > 0 {
								continue
							}
							content := maps.Clone(w.layers[under.Layer])
							maps.Copy(content, w.layers[r.Layer])
							m := timeline.Route{Top: top, Below: under.Below, Layer: w.newLayer(t, content), Merged: true}
							if err := d.AddRoute(ctx, m); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			},
			"delete": func(t *rapid.T) {
				id := w.anySnap(t, w.anyBox(t))
				cut := must(d.Cut(ctx, id))(w.tb(t))
				var led []timeline.Route
				fresh := map[timeline.LayerID]files{}
				for _, r := range cut.Above {
					n := timeline.Route{Top: r.Top, Below: cut.Below, Layer: r.Layer}
					if cut.Own != nil {
						content := maps.Clone(w.layers[cut.Own.Layer])
						maps.Copy(content, w.layers[r.Layer])
						n.Layer = newLayer(w.tb(t))
						fresh[n.Layer] = content
					}
					led = append(led, n)
				}
				unused, err := d.DeleteSnapshot(ctx, id, led)
				used := false
				for box, head := range w.boxes {
					rec := must(d.Sandbox(ctx, string(box)))(w.tb(t))
					used = used || head == id || rec.MountTop == id
				}
				if used {
					if !fault.Is(err, fault.Conflict) {
						t.Fatalf("delete what is used: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(w.layers, fresh)
				w.remove(t, unused)
				for child, p := range w.parent {
					if p == id {
						w.parent[child] = w.parent[id]
					}
				}
				delete(w.owner, id)
				delete(w.parent, id)
				delete(w.files, id)
				// Snapshots that only this one held are left for gc.
				w.forget()
				w.remove(t, must(d.DropUnreferenced(ctx, ""))(w.tb(t)))
			},
			"remove": func(t *rapid.T) {
				id := w.anyBox(t)
				w.remove(t, must(d.DeleteSandbox(ctx, id))(w.tb(t)))
				delete(w.boxes, id)
				w.forget()
			},
		})
		w.checkBoxes(t, w.boxes)
		if err := d.Check(ctx); err != nil {
			t.Fatal(err)
		}
	})
}
