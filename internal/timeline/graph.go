package timeline

import (
	"slices"
	"strings"
)

// Row is one line of the drawn history: the lanes, and the snapshot that the "*"
// among them stands for. ID is "" in a line that only joins or moves lanes.
type Row struct {
	Graph string
	ID    SnapshotID
}

// Graph draws the history as git log --graph does, newest snapshot first, in
// "*", "|" and "/". Lines carry no space at their end.
func (h *History) Graph() []Row {
	// A branch that left its parent before the newest snapshot was made:
	//
	//	| *
	//	* |
	//	|/
	//	*
	var rows []Row
	var lanes []SnapshotID // lanes[i] is the snapshot that lane i leads down to
	order := h.NewestFirst()
	for i, id := range order {
		at := slices.Index(lanes, id)
		if at < 0 {
			at = len(lanes)
			lanes = append(lanes, id)
		}
		rows = append(rows, Row{Graph: nodeLine(len(lanes), at), ID: id})

		parent := h.Snapshots[id].Parent
		if _, ok := h.Snapshots[parent]; !ok {
			lanes = slices.Delete(lanes, at, at+1)
			if i+1 < len(order) { // or the next root would seem to be the parent
				rows = append(rows, Row{Graph: moveLine(at, at+1, len(lanes)+1)})
			}
			continue
		}
		lanes[at] = parent
		other := slices.IndexFunc(lanes, func(l SnapshotID) bool { return l == parent })
		if other == at {
			other = at + 1 + slices.Index(lanes[at+1:], parent)
		}
		if other == at { // no second lane leads there
			continue
		}
		left, right := min(at, other), max(at, other)
		rows = append(rows, joinLines(left, right, len(lanes))...)
		lanes = slices.Delete(lanes, right, right+1)
	}
	return rows
}

// nodeLine draws n lanes with a snapshot in lane at.
func nodeLine(n, at int) string {
	line := blank(n)
	for i := range n {
		line[2*i] = '|'
	}
	line[2*at] = '*'
	return trim(line)
}

// moveLine draws n lanes of which those from first on move one to the left, and
// the lanes below still lanes stay where they are.
func moveLine(still, first, n int) string {
	line := blank(n)
	for i := range still {
		line[2*i] = '|'
	}
	for i := first; i < n; i++ {
		line[2*i-1] = '/'
	}
	return trim(line)
}

// joinLines draws lane right going into lane left, behind the lanes between, and
// the lanes beyond right closing up, out of n.
func joinLines(left, right, n int) []Row {
	rows := []Row{{Graph: moveLine(right, right, n)}}
	for to := right - 2; to >= left; to-- {
		line := blank(n - 1)
		for i := range n - 1 {
			line[2*i] = '|'
		}
		line[2*to+1] = '/'
		rows = append(rows, Row{Graph: trim(line)})
	}
	return rows
}

func blank(lanes int) []byte { return []byte(strings.Repeat(" ", 2*lanes)) }

func trim(line []byte) string { return strings.TrimRight(string(line), " ") }
