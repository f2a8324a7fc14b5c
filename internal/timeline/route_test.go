package timeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func parents(kv ...string) func(SnapshotID) (SnapshotID, bool) {
	m := map[SnapshotID]SnapshotID{}
	for _, w := range kv {
		id, parent, _ := strings.Cut(w, "<")
		m[SnapshotID(id)] = SnapshotID(parent)
	}
	return func(id SnapshotID) (SnapshotID, bool) { p, ok := m[id]; return p, ok }
}

func TestStackOf(t *testing.T) {
	t.Parallel()
	line := parents("a", "b<a", "c<b", "d<c")
	own := []Route{{"a", "", "1", false}, {"b", "a", "2", false}, {"c", "b", "3", false}, {"d", "c", "4", false}}
	for _, c := range []struct {
		name   string
		routes []Route
		parent func(SnapshotID) (SnapshotID, bool)
		target SnapshotID
		want   string
		fails  string
	}{
		{"the base itself", nil, line, "", "", ""},
		{"no routes", nil, line, "d", "", ""},
		{"a chain", own, line, "d", "4 3 2 1", ""},
		{"an inner snapshot", own, line, "b", "2 1", ""},
		{"equal to its parent", append(slices.Clone(own[:2]), own[3]), line, "d", "4 2 1", ""},
		{"merged", append(slices.Clone(own), Route{"c", "", "m", true}), line, "d", "4 m", ""},
		{"merged above does not help below", append(slices.Clone(own), Route{"d", "b", "m", true}), line, "c", "3 2 1", ""},
		{"the deepest of two", append(slices.Clone(own), Route{"d", "b", "m", true}, Route{"d", "a", "n", true}), line,
			"d", "n 1", ""},
		{"deepest first is not always shortest",
			append(slices.Clone(own), Route{"d", "b", "m", true}, Route{"c", "", "n", true}), line, "d", "4 n", ""},
		{"below what is no ancestor", []Route{{"b", "x", "2", false}, {"x", "", "7", false}}, parents("a", "b<a", "x<a"),
			"b", "2 7", ""},
		{"unknown target", own, line, "z", "", "snapshot z, which is missing"},
		{"unknown parent", own[2:], parents("b<a", "c<b"), "c", "", "based on snapshot a, which"},
		{"an unknown parent behind a merged route", append(slices.Clone(own[2:]), Route{"c", "", "m", true}),
			parents("c<b", "d<c"), "d", "4 m", ""},
		{"a circle", []Route{{"a", "b", "1", false}, {"b", "a", "2", false}}, line, "b", "", "loop"},
		{"a circle of parents", nil, parents("a<b", "b<a"), "b", "", "loop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := StackOf(RoutesByTop(c.routes), c.target, c.parent)
			words := make([]string, len(got))
			for i, l := range got {
				words[i] = string(l)
			}
			if strings.Join(words, " ") != c.want || (err == nil) != (c.fails == "") {
				t.Errorf("got %v, %v; want %s", got, err, c.want)
			}
			if c.fails != "" && (!fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("got %v; want %q", err, c.fails)
			}
		})
	}
}

// model is a tree, which maps paths to values, or a layer, in which "" is a whiteout.
type model map[string]string

func (m model) apply(layer model) model {
	out := maps.Clone(m)
	for path, v := range layer {
		if v == "" {
			delete(out, path)
		} else {
			out[path] = v
		}
	}
	return out
}

// world is a history with the layers of its routes and the tree of every snapshot, which is computed from its
// parent's tree without any route.
type world struct {
	ids     []SnapshotID
	parents map[SnapshotID]SnapshotID
	trees   map[SnapshotID]model
	layers  map[LayerID]model
	routes  []Route
	made    int
}

func (w *world) parentOf(id SnapshotID) (SnapshotID, bool) { p, ok := w.parents[id]; return p, ok }

// add makes a snapshot with changes against its parent. Its route ends in below, and its layer is the difference from
// there.
func (w *world) add(parent, below SnapshotID, changes model) SnapshotID {
	w.made++
	id := SnapshotID(fmt.Sprintf("%012x", w.made))
	w.ids = append(w.ids, id)
	w.parents[id] = parent
	w.trees[id] = w.trees[parent].apply(changes)
	if len(changes) > 0 {
		w.route(id, below, w.difference(below, id), false)
	}
	return id
}

func (w *world) difference(from, to SnapshotID) model {
	d := model{}
	for path, v := range w.trees[to] {
		if w.trees[from][path] != v {
			d[path] = v
		}
	}
	for path := range w.trees[from] {
		if _, ok := w.trees[to][path]; !ok {
			d[path] = ""
		}
	}
	return d
}

func (w *world) route(top, below SnapshotID, layer model, merged bool) {
	id := LayerID(fmt.Sprintf("%016x", len(w.layers)+1))
	w.layers[id] = layer
	w.routes = append(w.routes, Route{Top: top, Below: below, Layer: id, Merged: merged})
}

// merge carries out a plan as the store does: lower layers first, with whiteouts kept.
func (w *world) merge(p MergePlan) {
	out := model{}
	for i := len(p.Layers) - 1; i >= 0; i-- {
		maps.Copy(out, w.layers[p.Layers[i]])
	}
	w.route(p.Top, p.Below, out, true)
}

// check compares the stacked layers of every snapshot with its tree.
func (w *world) check(t *rapid.T) {
	routes := RoutesByTop(w.routes)
	for _, id := range w.ids {
		stack, err := StackOf(routes, id, w.parentOf)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		tree := w.trees[""]
		for i := len(stack) - 1; i >= 0; i-- {
			tree = tree.apply(w.layers[stack[i]])
		}
		if !maps.Equal(tree, w.trees[id]) {
			t.Fatalf("%s: the stack %v shows %v, want %v\nroutes %v", id, stack, tree, w.trees[id], w.routes)
		}
	}
}

func newWorld() *world {
	return &world{
		parents: map[SnapshotID]SnapshotID{}, layers: map[LayerID]model{},
		trees: map[SnapshotID]model{"": {"a": "base", "b": "base"}},
	}
}

// TestStackOf_EqualsAppliedChanges checks that a stack has the same content as all snapshots' own changes applied in
// order, however snapshots branch, wherever their routes end, and whichever merges are built or snapshots removed.
func TestStackOf_EqualsAppliedChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		changes := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}),
			rapid.SampledFrom([]string{"", "1", "2", "3"}), 0, 3)
		t.Repeat(map[string]func(*rapid.T){
			"": w.check,
			"add": func(t *rapid.T) {
				parent := SnapshotID("")
				if len(w.ids) > 0 {
					parent = w.ids[max(0, len(w.ids)-1-rapid.IntRange(0, 3).Draw(t, "back"))]
				}
				below := parent
				if rapid.IntRange(0, 4).Draw(t, "older") == 0 && len(w.ids) > 0 {
					below = rapid.SampledFrom(w.ids).Draw(t, "below")
				}
				w.add(parent, below, changes.Draw(t, "changes"))
			},
			"merge": func(t *rapid.T) {
				if len(w.ids) == 0 {
					t.Skip("nothing to merge")
				}
				plans, err := PlanMerges(RoutesByTop(w.routes), rapid.SampledFrom(w.ids).Draw(t, "target"), w.parentOf)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range plans {
					if rapid.Bool().Draw(t, "built") {
						w.merge(p)
					}
				}
			},
			"merge any neighbours": func(t *rapid.T) {
				if len(w.ids) == 0 {
					t.Skip("nothing to merge")
				}
				path, err := shortestPath(RoutesByTop(w.routes), rapid.SampledFrom(w.ids).Draw(t, "target"), w.parentOf)
				if err != nil || len(path) < 2 {
					t.Skip("nothing to merge")
				}
				from := rapid.IntRange(0, len(path)-2).Draw(t, "from")
				to := rapid.IntRange(from+2, len(path)).Draw(t, "to")
				p := MergePlan{Top: path[from].Top, Below: path[to-1].Below}
				for _, r := range path[from:to] {
					p.Layers = append(p.Layers, r.Layer)
				}
				w.merge(p)
			},
			"drop merged": func(*rapid.T) {
				w.routes = slices.DeleteFunc(w.routes, func(r Route) bool { return r.Merged })
			},
			"delete": func(t *rapid.T) {
				if len(w.ids) == 0 {
					t.Skip("nothing to delete")
				}
				w.remove(rapid.SampledFrom(w.ids).Draw(t, "gone"))
			},
		})
	})
}

// remove removes a snapshot as the engine does: routes that end in it are extended to what is below, and merged
// routes from or to it are removed.
func (w *world) remove(id SnapshotID) {
	parent := w.parents[id]
	below := parent
	var own *Route
	var above []Route
	keep := w.routes[:0:0]
	for _, r := range w.routes {
		switch {
		case r.Top == id && !r.Merged:
			own, below = &r, r.Below
		case r.Below == id && !r.Merged:
			above = append(above, r)
		case r.Top != id && r.Below != id:
			keep = append(keep, r)
		}
	}
	w.routes = keep
	for _, r := range above {
		layer := w.layers[r.Layer]
		if own != nil {
			merged := maps.Clone(w.layers[own.Layer])
			maps.Copy(merged, layer)
			layer = merged
		}
		w.route(r.Top, below, layer, false)
	}
	for child, p := range w.parents {
		if p == id {
			// A child without a route equals id, and must still do so.
			if own != nil && !slices.ContainsFunc(w.routes, func(r Route) bool { return r.Top == child }) {
				w.route(child, below, w.layers[own.Layer], false)
			}
			w.parents[child] = parent
		}
	}
	delete(w.parents, id)
	w.ids = slices.DeleteFunc(w.ids, func(x SnapshotID) bool { return x == id })
}

func TestMerges_KeepChainsShort(t *testing.T) {
	t.Parallel()
	for built, n := range map[string]int{"as it grows": 1200, "at the end": 4095} {
		t.Run(built, func(t *testing.T) {
			t.Parallel()
			line := map[SnapshotID]SnapshotID{}
			parentOf := func(id SnapshotID) (SnapshotID, bool) { p, ok := line[id]; return p, ok }
			routes := Routes{}
			top := SnapshotID("")
			merges, longest := 0, 0
			plan := func() {
				plans, err := PlanMerges(routes, top, parentOf)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range plans {
					merges++
					routes[p.Top] = append(routes[p.Top], Route{p.Top, p.Below, LayerID(fmt.Sprint("m", merges)), true})
				}
			}
			length := func(id SnapshotID) int {
				stack, err := StackOf(routes, id, parentOf)
				if err != nil {
					t.Fatal(err)
				}
				return len(stack)
			}
			for i := range n {
				id := SnapshotID(fmt.Sprintf("%012x", i+1))
				line[id] = top
				routes[id] = []Route{{id, top, LayerID(fmt.Sprint(i)), false}}
				top = id
				if built == "as it grows" {
					plan()
					longest = max(longest, length(id))
				}
			}
			plan()
			for id := range line {
				longest = max(longest, length(id))
			}
			if longest >= maxStack {
				t.Errorf("the longest stack has %d layers", longest)
			}
			if plans, err := PlanMerges(routes, top, parentOf); len(plans) > 0 || err != nil {
				t.Errorf("after all merges are built, there is still %v, %v", plans, err)
			}
			t.Logf("%d snapshots, %d merges, at most %d layers", n, merges, longest)
		})
	}
}

func TestMerges_OfRaggedStacks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		top := SnapshotID("")
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			top = w.add(top, top, model{"a": "1"})
			w.layers[w.routes[len(w.routes)-1].Layer] = model{"a": "1"}
		}
		for range rapid.IntRange(0, 30).Draw(t, "ragged") {
			from := rapid.IntRange(0, len(w.ids)-1).Draw(t, "from")
			to := rapid.IntRange(from, len(w.ids)-1).Draw(t, "to")
			below := SnapshotID("")
			if from > 0 {
				below = w.ids[from-1]
			}
			w.route(w.ids[to], below, model{"a": "1"}, true)
		}
		plans, err := PlanMerges(RoutesByTop(w.routes), top, w.parentOf)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plans {
			if len(p.Layers) < 2 {
				t.Fatalf("a merge of %v", p.Layers)
			}
			w.merge(p)
		}
		stack, err := StackOf(RoutesByTop(w.routes), top, w.parentOf)
		if err != nil || len(stack) >= maxStack {
			t.Fatalf("%d layers, %v", len(stack), err)
		}
		if again, err := PlanMerges(RoutesByTop(w.routes), top, w.parentOf); err != nil || len(again) > 0 &&
			len(stack) >= maxStack {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

func BenchmarkStackOf2000(b *testing.B) {
	line := Lineage{Parents: map[SnapshotID]SnapshotID{}, Routes: Routes{}}
	top := SnapshotID("")
	for i := range 2000 {
		id := SnapshotID(fmt.Sprintf("%012x", i+1))
		line.Parents[id] = top
		line.Routes[id] = []Route{{id, top, LayerID(fmt.Sprint(i)), false}}
		top = id
	}
	for b.Loop() {
		if stack, err := line.Stack(top); err != nil || len(stack) != 2000 {
			b.Fatal(len(stack), err)
		}
	}
}
