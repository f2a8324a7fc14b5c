//go:build linux

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
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
	return committed(&rec, t), err
}

// Checkout brings a sandbox to a snapshot, after a capture of the present.
func (e *Engine) Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	return e.move(ctx, name, "checking out "+req.Node, req, func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
		id, err := h.Resolve(req.Node, e.Now())
		return target{clean: id, dirty: id}, err
	})
}

// Undo goes req.N snapshots back. What was changed since HEAD counts as the first.
func (e *Engine) Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error) {
	n := max(1, req.N)
	return e.move(ctx, name, "undoing", wire.CheckoutRequest{InPlace: req.InPlace}, func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
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
func (e *Engine) Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error) {
	return e.move(ctx, name, "redoing", wire.CheckoutRequest{InPlace: req.InPlace}, func(h *timeline.History, rec *meta.Sandbox) (target, error) {
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
// exactly what they left, and the next start mounts the target's stack. In place
// they are let go on over the files of the target; see rewind.
//
// The target is chosen before the capture, so that HEAD means what the user saw;
// when an undo finds uncaptured changes, these are what it undoes first.
//
// Processes of a sandbox with a supervised command are asked to end first. What
// they still write is captured as well, and the command is started again.
func (e *Engine) move(ctx context.Context, name, what string, req wire.CheckoutRequest, choose func(*timeline.History, *meta.Sandbox) (target, error)) (m wire.MoveResult, err error) {
	s, rec, err := e.acquireAlone(ctx, name, what)
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
	grace := graceOf(req, s.run != nil)
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseCheckout, message: "before " + what, frozen: grace == 0})
	if err == nil && !req.InPlace {
		if err = e.willRestart(ctx, s, &rec); err != nil && t.frozen != nil {
			err = errors.Join(err, t.frozen.Thaw())
		}
	}
	if err == nil && grace > 0 {
		t, err = e.interrupt(ctx, s, &rec, t, grace)
	}
	if err != nil {
		return m, fault.Wrap(err, "keep the present of sandbox %s", rec.Name)
	}
	if t.changed {
		m.Kept = string(t.id)
	}
	m.From = string(seen)
	to := goal.clean
	if t.changed {
		to = goal.dirty
	}
	var redo []timeline.SnapshotID
	if goal.redo != nil {
		redo = goal.redo(rec.Head)
	}
	m.Head, m.Message = string(to), h.Snapshots[to].Message
	m.InPlace = req.InPlace && t.frozen != nil && t.procs > 0
	done, err := e.undertake(ctx, e.drafts(ctx, &rec, byDaemon(&format.Rollback{From: string(rec.Head), To: m.Head, InPlace: m.InPlace})...))
	if err != nil {
		return m, errors.Join(err, e.remain(ctx, s, t))
	}
	defer func() {
		if rec.Head == to {
			done(nil)
		} else {
			done(err)
		}
	}()
	if m.InPlace {
		if m.Rewritten, err = e.rewind(context.WithoutCancel(ctx), s, &rec, t.frozen, to, what, redo); err == nil {
			e.moved(&rec, m, what)
		}
		return m, err
	}
	m.Stopped = t.procs
	if err := e.stopBox(ctx, s, 0); err != nil {
		return m, err
	}
	if err := e.reset(ctx, s, &rec, to, redo); err != nil {
		return m, err
	}
	e.moved(&rec, m, what)
	m.Restarted, err = e.restart(ctx, s, &rec)
	return m, err
}

// remain lets a sandbox that was to be moved go on where it is. A supervised command that
// was stopped for that begins again there, as willRestart has noted.
func (e *Engine) remain(ctx context.Context, s *sandbox, t taken) error {
	if t.frozen == nil {
		return nil
	}
	err := t.frozen.Thaw()
	if s.run == nil {
		return err
	}
	return errors.Join(err, e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Again = false; return nil }))
}

// graceOf is what processes have between SIGTERM and SIGKILL in a rewind: those
// of a supervised command some time, unless it is in place; others none.
func graceOf(req wire.CheckoutRequest, supervised bool) time.Duration {
	switch {
	case !supervised || req.InPlace || req.GraceMS < 0:
		return 0
	case req.GraceMS == 0:
		return runGrace
	}
	return time.Duration(req.GraceMS) * time.Millisecond
}

// interrupt asks the processes to end, and ends them after the grace. What they
// still write is captured, on top of t. The caller holds the lock.
func (e *Engine) interrupt(ctx context.Context, s *sandbox, rec *meta.Sandbox, t taken, grace time.Duration) (taken, error) {
	if err := e.stopBox(ctx, s, grace); err != nil {
		return t, err
	}
	last, err := e.capture(ctx, s, rec, note{cause: timeline.CauseCheckout, message: "written while it was stopped"})
	last.changed, last.procs = last.changed || t.changed, t.procs
	return last, err
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
