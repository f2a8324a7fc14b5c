package timeline

import (
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// maxRedo is how many steps can be redone; older ones are dropped.
const maxRedo = 100

// Undo returns the snapshot n steps back, and the redo stack once HEAD is there. It returns Invalid for n < 1, and
// NotFound if HEAD has fewer ancestors. It changes neither h nor redo.
//
// The redo stack belongs to one sandbox and is stored by the caller. Undo and Redo return the next one; everything
// else that moves HEAD empties it.
func (h *History) Undo(n int, redo []SnapshotID) (target SnapshotID, next []SnapshotID, err error) {
	if n < 1 {
		return "", nil, fault.New(fault.Invalid, "invalid number of snapshots to undo %d: must be "+
			"positive", n).WithHint("use a number of 1 or more")
	}
	up := h.Ancestors(h.Head)
	if n > len(up) {
		return "", nil, fault.New(fault.NotFound, "cannot undo %s: HEAD (%s) has %s", visible.Count(n, "snapshot"),
			h.describe(h.Head), ancestors(len(up))).
			WithHint("see the history: coppice log NAME")
	}
	next = append(append([]SnapshotID{}, redo...), h.Head)
	if len(next) > maxRedo {
		next = next[len(next)-maxRedo:]
	}
	return up[n-1], next, nil
}

// Redo returns the snapshot that the last undo left, and the remaining redo stack. Snapshots that were deleted
// meanwhile are skipped. It returns NotFound if none is left. It changes neither h nor redo.
func (h *History) Redo(redo []SnapshotID) (target SnapshotID, next []SnapshotID, err error) {
	for i := len(redo) - 1; i >= 0; i-- {
		if _, ok := h.Snapshots[redo[i]]; ok && redo[i] != h.Head {
			return redo[i], append([]SnapshotID{}, redo[:i]...), nil
		}
	}
	return "", nil, fault.New(fault.NotFound, "nothing to redo").
		WithHint("rewind to any snapshot: coppice rewind NAME REF")
}
