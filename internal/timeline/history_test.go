package timeline

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestHistory_AncestorsAndChildren(t *testing.T) {
	t.Parallel()
	h := tree("a", "b<a", "c<b", "d<b", "e<d", "x")
	for id, want := range map[SnapshotID][]SnapshotID{"a": nil, "b": {"a"}, "e": {"d", "b", "a"}, "x": nil,
		"unknown": nil} {
		if got := h.Ancestors(id); !slices.Equal(got, want) || h.Depth(id) != len(want) {
			t.Errorf("Ancestors(%s) = %v, depth %d; want %v", id, got, h.Depth(id), want)
		}
	}
	for id, want := range map[SnapshotID][]SnapshotID{"a": {"b"}, "b": {"c", "d"}, "e": nil} {
		if got := h.Children(id); !slices.Equal(got, want) {
			t.Errorf("Children(%s) = %v; want %v", id, got, want)
		}
	}
	if got, want := h.Leaves(), []SnapshotID{"x", "e", "c"}; !slices.Equal(got, want) {
		t.Errorf("Leaves = %v; want %v", got, want)
	}
	for _, c := range []struct {
		a, b, lca SnapshotID
		ancestor  bool
	}{
		{"a", "e", "a", true}, {"e", "a", "a", false}, {"c", "e", "b", false}, {"e", "e", "e", true}, {"x", "e", "", false},
		{"unknown", "e", "", false}, {"e", "unknown", "", false}, {"unknown", "unknown", "", false},
	} {
		if got, ok := h.LowestCommonAncestor(c.a, c.b); got != c.lca || ok != (c.lca != "") {
			t.Errorf("LowestCommonAncestor(%s, %s) = %q, %v; want %q", c.a, c.b, got, ok, c.lca)
		}
		if got := h.IsAncestor(c.a, c.b); got != c.ancestor {
			t.Errorf("IsAncestor(%s, %s) = %v", c.a, c.b, got)
		}
	}
	h.Tags = map[string]SnapshotID{"z": "a", "y": "a", "x": "b"}
	if got := h.TagsOf("a"); !slices.Equal(got, []string{"y", "z"}) {
		t.Errorf("TagsOf(a) = %v", got)
	}
}

func TestBegan_FindsTheNearestImport(t *testing.T) {
	t.Parallel()
	h := tree("base", "first<base", "own<first", "x")
	for _, id := range []SnapshotID{"base", "first"} {
		s := h.Snapshots[id]
		s.Cause = CauseImport
		h.Snapshots[id] = s
	}
	for id, want := range map[SnapshotID]SnapshotID{"own": "first", "first": "first", "base": "base", "x": "x"} {
		if got := h.Began(id); got != want {
			t.Errorf("Began(%s) = %s; want %s", id, got, want)
		}
	}
	if got := tree("a", "b<a", "c<b").Began("c"); got != "a" {
		t.Errorf("Began(c) = %s without an import; want a, its oldest ancestor", got)
	}
}

func TestUndoAndRedo(t *testing.T) {
	t.Parallel()
	h := tree("a", "b<a", "c<b", "d<c")
	var redo []SnapshotID
	step := func(target SnapshotID, next []SnapshotID, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		h.Head, redo = target, next
	}
	step(h.Undo(1, redo))
	step(h.Undo(2, redo))
	if h.Head != "a" || !slices.Equal(redo, []SnapshotID{"d", "c"}) {
		t.Fatalf("after undo 1 and undo 2: HEAD %s, redo %v", h.Head, redo)
	}
	if _, _, err := h.Undo(1, redo); !fault.Is(err, fault.NotFound) {
		t.Errorf("undo at the root: %v", err)
	}
	if _, _, err := h.Undo(0, redo); !fault.Is(err, fault.Invalid) {
		t.Errorf("undo 0: %v", err)
	}
	step(h.Redo(redo))
	if h.Head != "c" {
		t.Fatalf("after redo: HEAD %s", h.Head)
	}
	delete(h.Snapshots, "d")
	if _, _, err := h.Redo(redo); !fault.Is(err, fault.NotFound) {
		t.Errorf("redo to a deleted snapshot: %v", err)
	}
	for range 2 * maxRedo {
		_, redo, _ = h.Undo(1, redo)
	}
	if len(redo) != maxRedo {
		t.Errorf("%d steps can be redone", len(redo))
	}
}

// TestHistory_MatchesModel compares a history under user operations with the simplest model: the list of ancestors of
// every snapshot.
func TestHistory_MatchesModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := &History{Snapshots: map[SnapshotID]Snapshot{}, Tags: map[string]SnapshotID{}, Sandbox: "0000000000aa"}
		lines := map[SnapshotID][]SnapshotID{} // every snapshot's ancestors, nearest first
		heads := []SnapshotID{}                // HEAD after each minute
		made := 0
		now := epoch
		var redo, model []SnapshotID // the model of the redo stack: where each undo started
		any := func(t *rapid.T) SnapshotID {
			if len(lines) == 0 {
				t.Skip("empty")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(lines))).Draw(t, "snapshot")
		}
		move := func(to SnapshotID) {
			h.Head = to
			h.Moves = append(h.Moves, Move{At: now, To: to})
		}
		tick := func() { heads = append(heads, h.Head); now = now.Add(time.Minute) }
		add := func(*rapid.T) {
			made++
			id := SnapshotID(fmt.Sprintf("%012x", made*0x3779b1%0xffffff))
			h.Snapshots[id] = Snapshot{ID: id, Parent: h.Head, Sandbox: "0000000000aa", Created: now}
			lines[id] = nil
			if h.Head != "" {
				lines[id] = append([]SnapshotID{h.Head}, lines[h.Head]...)
			}
			h.Head, redo, model = id, nil, nil
			tick()
		}
		add(t)
		t.Repeat(map[string]func(*rapid.T){
			"add": add,
			"checkout": func(t *rapid.T) {
				move(any(t))
				redo, model = nil, nil
				tick()
			},
			"undo": func(t *rapid.T) {
				n := rapid.IntRange(1, 4).Draw(t, "n")
				to, next, err := h.Undo(n, redo)
				if n > len(lines[h.Head]) {
					if !fault.Is(err, fault.NotFound) {
						t.Fatalf("undo %d of %d: %v", n, len(lines[h.Head]), err)
					}
					return
				}
				if err != nil || to != lines[h.Head][n-1] {
					t.Fatalf("undo %d: %s, %v", n, to, err)
				}
				model, redo = append(model, h.Head), next
				move(to)
				tick()
			},
			"redo": func(t *rapid.T) {
				to, next, err := h.Redo(redo)
				for len(model) > 0 && lines[model[len(model)-1]] == nil && h.Snapshots[model[len(model)-1]].ID == "" {
					model = model[:len(model)-1] // deleted
				}
				if len(model) == 0 {
					if !fault.Is(err, fault.NotFound) {
						t.Fatalf("nothing to redo: %s, %v", to, err)
					}
					return
				}
				if err != nil || to != model[len(model)-1] {
					t.Fatalf("redo: %s, %v; want %s", to, err, model[len(model)-1])
				}
				model, redo = model[:len(model)-1], next
				move(to)
				tick()
			},
			"delete": func(t *rapid.T) {
				id := any(t)
				if id == h.Head || slices.Contains(model, id) {
					t.Skip("in use")
				}
				for child, s := range h.Snapshots {
					if s.Parent == id {
						s.Parent = h.Snapshots[id].Parent
						h.Snapshots[child] = s
					}
				}
				delete(h.Snapshots, id)
				delete(lines, id)
				for k, l := range lines {
					lines[k] = slices.DeleteFunc(slices.Clone(l), func(x SnapshotID) bool { return x == id })
				}
				maps.DeleteFunc(h.Tags, func(_ string, at SnapshotID) bool { return at == id })
				for i := range heads {
					if heads[i] == id {
						heads[i] = "" // the result of @{...} is not modeled then
					}
				}
			},
			"tag": func(t *rapid.T) {
				h.Tags[rapid.SampledFrom([]string{"a", "b", "beef", "1234"}).Draw(t, "tag")] = any(t)
			},
			"": func(t *rapid.T) {
				for id, line := range lines {
					if got := h.Ancestors(id); !slices.Equal(got, line) {
						t.Fatalf("Ancestors(%s) = %v, want %v", id, got, line)
					}
					for i, want := range append([]SnapshotID{id}, line...) {
						if got, err := h.Resolve(fmt.Sprintf("%s~%d", id, i), now); got != want || err != nil {
							t.Fatalf("%s~%d = %s, %v; want %s", id, i, got, err, want)
						}
					}
					if got, err := h.Resolve(h.Short(id), now); got != id || err != nil {
						t.Fatalf("%s = %s, %v; want %s", h.Short(id), got, err, id)
					}
				}
				for tag, id := range h.Tags {
					if got, err := h.Resolve(tag, now); got != id || err != nil {
						t.Fatalf("%s = %s, %v; want %s", tag, got, err, id)
					}
				}
				rows, _ := h.Graph(math.MaxInt)
				if len(h.Snapshots) != len(lines) || len(rows) < len(lines) {
					t.Fatalf("%d snapshots, %d modelled, %d drawn", len(h.Snapshots), len(lines), len(rows))
				}
				for minute, want := range heads {
					if want == "" || slices.Contains(heads[:minute], "") {
						continue
					}
					ago := now.Sub(epoch.Add(time.Duration(minute) * time.Minute))
					if got, err := h.Resolve(fmt.Sprintf("@{%s}", ago), now); got != want || err != nil {
						t.Fatalf("@{%s} = %s, %v; want %s", ago, got, err, want)
					}
				}
			},
		})
	})
}
