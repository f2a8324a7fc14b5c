package timeline

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// History is the tree of snapshots that a sandbox can be rewound to: all that it made, and their ancestors, which
// other sandboxes may have made. Methods only read. They terminate on any input, also with cycles or missing parents,
// which only a damaged database has.
type History struct {
	Snapshots map[SnapshotID]Snapshot
	Head      SnapshotID
	Tags      map[string]SnapshotID
	Sandbox   SandboxID // "" counts every snapshot as the sandbox's own
	Moves     []Move    // sorted by time; @{5m} needs them in addition to the snapshots
}

// Move records that HEAD went to an existing snapshot. (HEAD also goes to every new snapshot of the sandbox; that is
// not a Move.)
type Move struct {
	At time.Time
	To SnapshotID
}

// Ancestors lists the ancestors of id, nearest first, without id itself. It stops at a parent that is not in the
// history.
func (h *History) Ancestors(id SnapshotID) []SnapshotID {
	var out []SnapshotID
	for s, ok := h.Snapshots[id]; ok && len(out) <= len(h.Snapshots); {
		s, ok = h.Snapshots[s.Parent]
		if ok {
			out = append(out, s.ID)
		}
	}
	return out
}

// Began returns the snapshot that a sandbox at id started from: the nearest import. For a fork it is that of its
// parent. Without an import it is the oldest ancestor.
func (h *History) Began(id SnapshotID) SnapshotID {
	line := append([]SnapshotID{id}, h.Ancestors(id)...)
	i := slices.IndexFunc(line, func(id SnapshotID) bool { return h.Snapshots[id].Cause == CauseImport })
	if i < 0 {
		return line[len(line)-1]
	}
	return line[i]
}

// Depth returns the number of ancestors of id.
func (h *History) Depth(id SnapshotID) int { return len(h.Ancestors(id)) }

// Children lists the snapshots whose parent is id, oldest first.
func (h *History) Children(id SnapshotID) []SnapshotID {
	var out []SnapshotID
	for _, s := range h.Snapshots {
		if s.Parent == id {
			out = append(out, s.ID)
		}
	}
	h.sortByTime(out)
	return out
}

// Leaves lists the snapshots without children, newest first. These are the branches.
func (h *History) Leaves() []SnapshotID {
	parents := h.childCount()
	var out []SnapshotID
	for id := range h.Snapshots {
		if parents[id] == 0 {
			out = append(out, id)
		}
	}
	h.sortByTime(out)
	slices.Reverse(out)
	return out
}

// IsAncestor reports whether a is b or an ancestor of b.
func (h *History) IsAncestor(a, b SnapshotID) bool {
	if _, ok := h.Snapshots[b]; !ok {
		return false
	}
	return a == b || slices.Contains(h.Ancestors(b), a)
}

// LowestCommonAncestor finds the deepest snapshot that is a or b or an ancestor of both; false if there is none.
func (h *History) LowestCommonAncestor(a, b SnapshotID) (SnapshotID, bool) {
	_, okA := h.Snapshots[a]
	_, okB := h.Snapshots[b]
	if !okA || !okB {
		return "", false
	}
	above := map[SnapshotID]bool{a: true}
	for _, id := range h.Ancestors(a) {
		above[id] = true
	}
	for _, id := range append([]SnapshotID{b}, h.Ancestors(b)...) {
		if above[id] {
			return id, true
		}
	}
	return "", false
}

// At returns the snapshot that HEAD was at time t; false if the history does not go back that far.
func (h *History) At(t time.Time) (SnapshotID, bool) {
	var best SnapshotID
	var when time.Time
	for _, s := range h.Snapshots {
		own := h.Sandbox == "" || s.Sandbox == h.Sandbox
		later := best == "" || s.Created.After(when) || s.Created.Equal(when) && s.ID > best
		if own && !s.Created.After(t) && later {
			best, when = s.ID, s.Created
		}
	}
	for _, m := range h.Moves {
		if _, ok := h.Snapshots[m.To]; ok && !m.At.After(t) && (best == "" || !m.At.Before(when)) {
			best, when = m.To, m.At
		}
	}
	return best, best != ""
}

// TagsOf lists the tags of a snapshot in order.
func (h *History) TagsOf(id SnapshotID) []string {
	var out []string
	for tag, at := range h.Tags {
		if at == id {
			out = append(out, tag)
		}
	}
	slices.Sort(out)
	return out
}

// Short returns the shortest prefix of id, of at least MinPrefix digits, that no other snapshot and no tag of the
// history shares.
func (h *History) Short(id SnapshotID) string {
	n := MinPrefix
	for other := range h.Snapshots {
		if other != id {
			n = max(n, commonPrefix(string(id), string(other))+1)
		}
	}
	n = min(n, len(id))
	for n < len(id) {
		if _, taken := h.Tags[string(id[:n])]; !taken {
			break
		}
		n++
	}
	return string(id[:n])
}

// Shorts returns Short of every snapshot.
func (h *History) Shorts() map[SnapshotID]string {
	ids := slices.Sorted(maps.Keys(h.Snapshots))
	out := make(map[SnapshotID]string, len(ids))
	for i, id := range ids {
		n := MinPrefix
		if i > 0 {
			n = max(n, commonPrefix(string(id), string(ids[i-1]))+1)
		}
		if i+1 < len(ids) {
			n = max(n, commonPrefix(string(id), string(ids[i+1]))+1)
		}
		n = min(n, len(id))
		for n < len(id) {
			if _, taken := h.Tags[string(id[:n])]; !taken {
				break
			}
			n++
		}
		out[id] = string(id[:n])
	}
	return out
}

// NewestFirst lists all snapshots, newest first, but every child before its parent, whatever the clocks said.
func (h *History) NewestFirst() []SnapshotID {
	waiting := h.childCount()
	var ready timeHeap
	for id := range h.Snapshots {
		if waiting[id] == 0 {
			ready.push(h.Snapshots[id])
		}
	}
	out := make([]SnapshotID, 0, len(h.Snapshots))
	for len(ready) > 0 {
		s := ready.pop()
		out = append(out, s.ID)
		if p, ok := h.Snapshots[s.Parent]; ok {
			if waiting[p.ID]--; waiting[p.ID] == 0 {
				ready.push(p)
			}
		}
	}
	return out
}

// Newest lists the n newest snapshots that the sandbox itself made.
func (h *History) Newest(n int) []SnapshotID {
	var own []SnapshotID
	for id, s := range h.Snapshots {
		if h.Sandbox == "" || s.Sandbox == h.Sandbox {
			own = append(own, id)
		}
	}
	h.sortByTime(own)
	return own[max(0, len(own)-n):]
}

// childCount counts the children of every snapshot that has any.
func (h *History) childCount() map[SnapshotID]int {
	n := make(map[SnapshotID]int, len(h.Snapshots))
	for _, s := range h.Snapshots {
		if s.Parent != "" {
			n[s.Parent]++
		}
	}
	return n
}

// sortByTime sorts by time, oldest first, and by id if times are equal.
func (h *History) sortByTime(ids []SnapshotID) {
	slices.SortFunc(ids, func(a, b SnapshotID) int {
		if c := h.Snapshots[a].Created.Compare(h.Snapshots[b].Created); c != 0 {
			return c
		}
		return strings.Compare(string(a), string(b))
	})
}

func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// timeHeap is a binary heap with the newest snapshot on top.
type timeHeap []Snapshot

func (t timeHeap) newer(i, j int) bool {
	if c := t[i].Created.Compare(t[j].Created); c != 0 {
		return c > 0
	}
	return t[i].ID > t[j].ID
}

func (t *timeHeap) push(s Snapshot) {
	*t = append(*t, s)
	for i := len(*t) - 1; i > 0; {
		up := (i - 1) / 2
		if !t.newer(i, up) {
			return
		}
		(*t)[i], (*t)[up] = (*t)[up], (*t)[i]
		i = up
	}
}

func (t *timeHeap) pop() Snapshot {
	old := *t
	top, last := old[0], len(old)-1
	old[0] = old[last]
	*t = old[:last]
	for i := 0; ; {
		next := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if t.newer(c, next) {
				next = c
			}
		}
		if next == i {
			return top
		}
		old[i], old[next] = old[next], old[i]
		i = next
	}
}
