//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Commit takes a snapshot of the present.
func (e *Engine) Commit(ctx context.Context, name, message string) (wire.CommitResult, error) {
	s, rec, err := e.acquire(ctx, name, "committing")
	if err != nil {
		return wire.CommitResult{}, err
	}
	defer s.unlock(e)
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseManual, message: message})
	return wire.CommitResult{
		Node: string(t.id), Head: string(rec.Head), Changed: t.changed, Paths: t.stats.Paths, Bytes: t.stats.Bytes,
	}, err
}

// Checkout brings a sandbox to a snapshot, after a capture of the present.
func (e *Engine) Checkout(ctx context.Context, name, ref string) (wire.MoveResult, error) {
	return e.move(ctx, name, "checking out "+ref, func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
		id, err := h.Resolve(ref, e.Now())
		return target{clean: id, dirty: id}, err
	})
}

// Undo goes n snapshots back. What was changed since HEAD counts as the first.
func (e *Engine) Undo(ctx context.Context, name string, n int) (wire.MoveResult, error) {
	return e.move(ctx, name, "undoing", func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
		if to.clean, _, err = h.Undo(n, rec.Redo); err != nil {
			return to, err
		}
		to.dirty = h.Head
		if n > 1 {
			to.dirty, _, err = h.Undo(n-1, rec.Redo)
		}
		to.redo = func(from timeline.SnapshotID) []timeline.SnapshotID { return append(rec.Redo, from) }
		return to, err
	})
}

// Redo takes the last undo back.
func (e *Engine) Redo(ctx context.Context, name string) (wire.MoveResult, error) {
	return e.move(ctx, name, "redoing", func(h *timeline.History, rec *meta.Sandbox) (target, error) {
		id, left, err := h.Redo(rec.Redo)
		return target{clean: id, dirty: id, redo: func(timeline.SnapshotID) []timeline.SnapshotID { return left }}, err
	})
}

// target is where a move goes: clean when the present equals HEAD, dirty when it
// holds changes of its own. redo gives the new list of what can be redone from
// where HEAD was; nil empties it.
type target struct {
	clean, dirty timeline.SnapshotID
	redo         func(from timeline.SnapshotID) []timeline.SnapshotID
}

// move captures the present and then brings the sandbox to a snapshot: its
// processes are killed where the capture froze them, so that the snapshot is
// exactly what they left, and the next start mounts the target's stack.
//
// The target is chosen before the capture, so that HEAD means what the user saw;
// when an undo finds uncaptured changes, these are what it undoes first.
func (e *Engine) move(ctx context.Context, name, what string, choose func(*timeline.History, *meta.Sandbox) (target, error)) (m wire.MoveResult, err error) {
	s, rec, err := e.acquire(ctx, name, what)
	if err != nil {
		return m, err
	}
	defer s.unlock(e)
	h, err := e.history(ctx, &rec)
	if err != nil {
		return m, err
	}
	goal, err := choose(h, &rec)
	if err != nil {
		return m, err
	}
	seen := rec.Head
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseCheckout, message: "before " + what, frozen: true})
	if err != nil {
		return m, fault.Wrap(err, "keep the present of sandbox %s", rec.Name)
	}
	if t.changed {
		m.Kept = string(t.id)
	}
	m.From, m.Stopped = string(seen), t.procs
	to := goal.clean
	if t.changed {
		to = goal.dirty
	}
	var redo []timeline.SnapshotID
	if goal.redo != nil {
		redo = goal.redo(rec.Head)
	}
	if err := e.stopBox(ctx, s, 0); err != nil {
		return m, err
	}
	if err := e.reset(ctx, s, &rec, to, redo); err != nil {
		return m, err
	}
	m.Head, m.Message = string(to), h.Snapshots[to].Message
	return m, nil
}

// reset gives a sandbox a new generation that stands on a snapshot. Its box is
// stopped. The old generation is deleted later: all that it holds is captured.
func (e *Engine) reset(ctx context.Context, s *sandbox, rec *meta.Sandbox, to timeline.SnapshotID, redo []timeline.SnapshotID) error {
	old, head := e.genDir(rec), rec.Head
	err := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error {
		r.Head, r.MountTop, r.Gen, r.Redo = to, to, r.Gen+1, redo
		return nil
	})
	if err != nil {
		return err
	}
	rec.Head, rec.MountTop, rec.Gen, rec.Redo = to, to, rec.Gen+1, redo
	s.index, s.of = nil, ""
	e.dropIndex(s.id, head)
	e.retire(old)
	return nil
}
