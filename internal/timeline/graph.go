package timeline

import (
	"slices"
	"strings"
)

// Row is one line of the drawn history: the lanes, and the snapshot that the "*" in it stands for. ID is "" in a line
// that only joins or moves lanes.
type Row struct {
	Graph string
	ID    SnapshotID
}

// Graph draws the history as git log --graph does, newest snapshot first, with "*", "|" and "/". Lines have no
// trailing space. They have at most most bytes in total, and the work is bounded accordingly; more reports that older
// snapshots are omitted.
func (h *History) Graph(most int) (rows []Row, more bool) {
	d := drawing{left: most}
	h.draw(&d)
	return d.rows, d.full
}

// drawing is a list of rows of bounded size.
type drawing struct {
	rows []Row
	left int
	full bool
}

// add adds a row, and reports whether it fit.
func (d *drawing) add(line string, id SnapshotID) bool {
	if d.left -= len(line) + 1; d.left < 0 {
		d.full = true
		return false
	}
	d.rows = append(d.rows, Row{Graph: line, ID: id})
	return true
}

func (h *History) draw(d *drawing) {
	// Example: a branch that left its parent before the newest snapshot was made.
	//
	//	| *
	//	* |
	//	|/
	//	*
	var lanes []SnapshotID // lanes[i] is the snapshot that lane i leads down to
	order := h.NewestFirst()
	for i, id := range order {
		at := slices.Index(lanes, id)
		if at < 0 {
			at = len(lanes)
			lanes = append(lanes, id)
		}
		if !d.add(nodeLine(len(lanes), at), id) {
			return
		}

		parent := h.Snapshots[id].Parent
		if _, ok := h.Snapshots[parent]; !ok {
			lanes = slices.Delete(lanes, at, at+1)
			// Otherwise the next root would look like the parent.
			if i+1 < len(order) && !d.add(moveLine(at, at+1, len(lanes)+1), "") {
				return
			}
			continue
		}
		lanes[at] = parent
		other := slices.IndexFunc(lanes, func(l SnapshotID) bool { return l == parent })
		if other == at {
			other = at + 1 + slices.Index(lanes[at+1:], parent)
		}
		if other == at { // no other lane leads to the parent
			continue
		}
		left, right := min(at, other), max(at, other)
		if !d.join(left, right, len(lanes)) {
			return
		}
		lanes = slices.Delete(lanes, right, right+1)
	}
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

// moveLine draws n lanes. The lanes from first on move one column to the left; those below still do not move.
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

// join draws how lane right joins lane left, behind the lanes in between, and how the lanes beyond right move to the
// left, out of n. It reports whether the rows fit.
func (d *drawing) join(left, right, n int) bool {
	fits := d.add(moveLine(right, right, n), "")
	for to := right - 2; fits && to >= left; to-- {
		line := blank(n - 1)
		for i := range n - 1 {
			line[2*i] = '|'
		}
		line[2*to+1] = '/'
		fits = d.add(trim(line), "")
	}
	return fits
}

func blank(lanes int) []byte { return []byte(strings.Repeat(" ", 2*lanes)) }

func trim(line []byte) string { return strings.TrimRight(string(line), " ") }
