package timeline

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/limit"
)

// tree makes a history from "child<parent" words, each one minute after the one before; the last one is HEAD. Names
// are one letter.
func tree(words ...string) *History {
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Tags: map[string]SnapshotID{}}
	for i, w := range words {
		id, parent, _ := strings.Cut(w, "<")
		h.Head = SnapshotID(id)
		h.Snapshots[h.Head] = Snapshot{ID: h.Head, Parent: SnapshotID(parent),
			Created: epoch.Add(time.Duration(i) * time.Minute)}
	}
	return h
}

func TestGraph(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		h    *History
		want string
	}{
		{"empty", tree(), ``},
		{"one", tree("a"), `
			* a`},
		{"a line", tree("a", "b<a", "c<b"), `
			* c
			* b
			* a`},
		{"a branch", tree("a", "b<a", "c<b", "d<b", "e<d"), `
			* e
			* d
			| * c
			|/
			* b
			* a`},
		{"a branch on the right", tree("a", "b<a", "c<a", "d<b"), `
			* d
			| * c
			* | b
			|/
			* a`},
		{"three of one", tree("a", "b<a", "c<a", "d<a"), `
			* d
			| * c
			|/
			| * b
			|/
			* a`},
		{"lanes beyond close up", tree("r", "p<r", "x<r", "y<x", "b<p", "d<y", "c<p", "e<b"), `
			* e
			| * c
			| | * d
			* | | b
			|/ /
			| * y
			| * x
			* | p
			|/
			* r`},
		{"behind a lane", tree("r", "p<r", "q<p", "x<r", "y<p", "z<x", "w<q"), `
			* w
			| * z
			| | * y
			| * | x
			* | | q
			| |/
			|/|
			* | p
			|/
			* r`},
		{"two roots", tree("a", "b", "c<a", "d<b"), `
			* d
			| * c
			* | b
			 /
			* a`},
		{"the clock went back", tree("b<a", "a"), `
			* b
			* a`},
		{"a missing parent", tree("b<gone", "c<b"), `
			* c
			* b`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			rows, more := c.h.Graph(math.MaxInt)
			if more {
				t.Error("rows are omitted")
			}
			for _, r := range rows {
				line := "\n\t\t\t" + r.Graph
				if r.ID != "" {
					line += " " + string(r.ID)
				}
				got.WriteString(line)
			}
			if got.String() != c.want {
				t.Errorf("got%s\nwant%s", got.String(), c.want)
			}
		})
	}
}

// TestGraph_MatchesParents reads the drawing: the lane down from every snapshot must lead to its parent.
func TestGraph_MatchesParents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t, 40)
		rows, _ := h.Graph(math.MaxInt)
		at := func(y, x int) byte {
			if y >= len(rows) || x < 0 || x >= len(rows[y].Graph) {
				return ' '
			}
			return rows[y].Graph[x]
		}
		seen := 0
		for y, r := range rows {
			if strings.TrimRight(r.Graph, " ") != r.Graph || (r.ID != "") != strings.Contains(r.Graph, "*") {
				t.Fatalf("row %d is %q for %q", y, r.Graph, r.ID)
			}
			if r.ID == "" {
				continue
			}
			seen++
			x := strings.IndexByte(r.Graph, '*')
			reached := SnapshotID("")
		down:
			for y2, slant := y+1, false; y2 < len(rows); y2++ {
				// A lane goes straight down to the column below or, with a slash, one column to the left; a slash
				// continues as a slash or as a lane.
				switch {
				case slant && at(y2, x-1) == '/' && at(y2, x) == '|':
					x -= 2 // behind the lane in this column
				case at(y2, x) == '|':
					slant = false
				case at(y2, x) == '*':
					reached = rows[y2].ID
					break down
				case at(y2, x-1) == '/':
					x, slant = x-2, true
				default:
					break down
				}
			}
			if want := h.Snapshots[r.ID].Parent; reached != want {
				var all []string
				for i, r := range rows {
					all = append(all, fmt.Sprintf("%2d %-20s %s<%s", i, r.Graph, r.ID, h.Snapshots[r.ID].Parent))
				}
				t.Fatalf("row %d: %s leads to %q, want %q\n%s", y, r.ID, reached, want, strings.Join(all, "\n"))
			}
		}
		if seen != len(h.Snapshots) {
			t.Fatalf("%d of %d snapshots are drawn", seen, len(h.Snapshots))
		}
	})
}

func TestNewestFirst_IsTopologicalAndByTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t, 60)
		order := h.NewestFirst()
		place := map[SnapshotID]int{}
		for i, id := range order {
			place[id] = i
		}
		if len(place) != len(h.Snapshots) {
			t.Fatalf("%d of %d snapshots are listed", len(place), len(h.Snapshots))
		}
		monotonic := true
		for id, s := range h.Snapshots {
			if p, ok := h.Snapshots[s.Parent]; ok {
				if place[p.ID] < place[id] {
					t.Fatalf("%s comes before its child %s", p.ID, id)
				}
				monotonic = monotonic && !p.Created.After(s.Created)
			}
		}
		if monotonic &&
			!slices.IsSortedFunc(order,
				func(a, b SnapshotID) int { return h.Snapshots[b].Created.Compare(h.Snapshots[a].Created) }) {
			t.Fatal("the clocks are right, but the order is not by time")
		}
	})
}

// drawHistory makes a random forest. Times mostly, but not always, follow the tree.
func drawHistory(t *rapid.T, most int) *History {
	h := &History{Snapshots: map[SnapshotID]Snapshot{}, Tags: map[string]SnapshotID{}, Sandbox: "0000000000aa"}
	n := rapid.IntRange(1, most).Draw(t, "n")
	ids := make([]SnapshotID, n)
	for i := range n {
		ids[i] = SnapshotID(fmt.Sprintf("%012x", i*0x9e3779b1%0xffffff))
		s := Snapshot{ID: ids[i], Sandbox: "0000000000aa", Message: fmt.Sprint("m", i)}
		if i > 0 && rapid.IntRange(0, 20).Draw(t, "root") > 0 {
			s.Parent = ids[rapid.IntRange(max(0, i-6), i-1).Draw(t, "parent")]
		}
		s.Created = epoch.Add(
			time.Duration(i+rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 3, -3}).Draw(t, "skew")) * time.Minute)
		h.Snapshots[s.ID] = s
		h.Head = s.ID
	}
	return h
}

func TestDamagedHistory_Terminates(t *testing.T) {
	t.Parallel()
	h := tree("a<c", "b<a", "c<b", "d<d", "e<gone")
	h.Head = "a"
	h.Graph(math.MaxInt)
	h.Shorts()
	for id := range h.Snapshots {
		h.Depth(id)
		h.LowestCommonAncestor(id, "e")
	}
	Retain(h, DefaultRetention(), epoch, nil)
	if _, err := h.Resolve("HEAD~7", epoch); err == nil {
		t.Error("an ancestor in a cycle was found")
	}
}

// crossed returns a history whose drawing takes the cube of n: n branches leave one snapshot, and each of them has
// two more, made in the opposite order.
func crossed(n int) *History {
	words := []string{"r"}
	for i := range n {
		words = append(words, fmt.Sprintf("b%d<r", i))
	}
	for _, name := range []string{"c", "d"} {
		for i := n - 1; i >= 0; i-- {
			words = append(words, fmt.Sprintf("%s%d<b%d", name, i, i))
		}
	}
	return tree(words...)
}

func TestGraph_StopsAtLimit(t *testing.T) {
	h := crossed(1000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	rows, more := h.Graph(limit.GraphBytes)
	runtime.ReadMemStats(&after)
	size := 0
	for _, r := range rows {
		size += len(r.Graph)
	}
	if !more || size > limit.GraphBytes || size < limit.GraphBytes/2 || rows[0].ID != "d0" {
		t.Errorf("%d rows of %d bytes, more %v", len(rows), size, more)
	}
	if cost := after.TotalAlloc - before.TotalAlloc; cost > 8*limit.GraphBytes {
		t.Errorf("drawing took %d bytes, more than the bound on the drawing allows", cost)
	}
}

// TestGraph_DrawsTheNewestSnapshotsWithinItsLimit checks that the rows that fit are those of an unlimited drawing.
func TestGraph_DrawsTheNewestSnapshotsWithinItsLimit(t *testing.T) {
	h := crossed(6)
	all, _ := h.Graph(math.MaxInt)
	for most := range 600 {
		rows, more := h.Graph(most)
		if !slices.Equal(rows, all[:len(rows)]) || more != (len(rows) < len(all)) {
			t.Fatalf("within %d bytes: %d of %d rows, more %v", most, len(rows), len(all), more)
		}
	}
}
