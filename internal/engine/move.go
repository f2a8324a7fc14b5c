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
	changed, err := e.mayChange(ctx, &rec)
	if err != nil {
		return wire.CommitResult{}, err
	}
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseManual, message: message})
	if t.changed {
		changed()
	}
	return committed(&rec, t), err
}

// CommitMemory takes a snapshot of the present with what its processes have in memory. The
// answer comes when both are safe from a power loss.
func (e *Engine) CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error) {
	s, rec, err := e.acquire(ctx, name, "committing")
	if err != nil {
		return wire.CommitResult{}, err
	}
	defer s.unlock(e)
	t, err := e.captureMemory(ctx, s, &rec, note{cause: timeline.CauseManual, message: message})
	if err == nil {
		err = e.secure(ctx)
	}
	return committed(&rec, t), err
}

// Checkout brings a sandbox to a snapshot, after a capture of the present.
func (e *Engine) Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	m, err := e.move(ctx, name, "checking out "+req.Node, req, func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
		id, err := h.Resolve(req.Node, e.Now())
		if snap := h.Snapshots[id]; err == nil && snap.Memory != nil && !req.FilesOnly && !req.InPlace {
			to.memory, err = e.resumable(rec, snap)
			to.foreign = snap.Sandbox != rec.ID || snap.Cause == timeline.CauseFork
		}
		to.clean, to.dirty = id, id
		return to, err
	})
	if err == nil && m.Resumed != nil {
		err = e.released(ctx, name)
	}
	return m, err
}

// released opens the gate of a sandbox whose processes go on from memory, once it is one of its
// own.
func (e *Engine) released(ctx context.Context, name string) error {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	if rec.Quarantine != nil {
		return e.awaken(ctx, string(rec.ID))
	}
	return nil
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
	memory       *timeline.Memory // processes go on from there; nil: they do not
	foreign      bool             // it is the memory of another sandbox's processes
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
	changed, err := e.mayChange(ctx, &rec)
	if err != nil {
		return m, err
	}
	changed()
	seen := rec.Head
	grace := graceOf(req, s.run != nil)
	n := note{cause: timeline.CauseCheckout, message: "before " + what}
	var img *image
	if goal.memory != nil {
		if img, err = e.ready(ctx, &rec, goal.clean, goal.memory); err != nil {
			return m, err
		}
		defer func() {
			if img != nil {
				img.release()
			}
		}()
		if n.memory, err = e.worthMemory(ctx, s, &rec); err != nil {
			return m, err
		}
		grace = 0 // what stands still is in the history, and goes on from there
	}
	n.frozen = grace == 0
	t, err := e.capture(ctx, s, &rec, n)
	if err == nil && !req.InPlace && img == nil {
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
	done, err := e.undertake(ctx, e.drafts(ctx, &rec, byDaemon(&format.Rollback{From: string(rec.Head), To: m.Head, InPlace: m.InPlace, Memory: imageOf(goal.memory)})...))
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
	if img != nil {
		from := img
		img = nil // goOn releases it
		m.Resumed, err = e.comeBack(ctx, s, &rec, from, goal.foreign)
		return m, err
	}
	if rec.Quarantine != nil { // what was another sandbox's has ended
		if err := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Quarantine = nil; return nil }); err != nil {
			return m, err
		}
		rec.Quarantine = nil
	}
	m.Restarted, err = e.restart(ctx, s, &rec)
	return m, err
}

// worthMemory reports whether processes run whose memory is kept before they are left.
func (e *Engine) worthMemory(ctx context.Context, s *sandbox, rec *meta.Sandbox) (bool, error) {
	b := e.liveBox(s)
	if b == nil || rec.Quarantine != nil {
		return false, nil
	}
	n, err := b.Procs(ctx)
	return n > 0, err
}

// comeBack lets processes go on from memory over the files that the sandbox was brought to,
// and opens its gate, unless they were another sandbox's: see released. It gives the commands
// that go on. The caller holds the lock.
func (e *Engine) comeBack(ctx context.Context, s *sandbox, rec *meta.Sandbox, img *image, foreign bool) ([]string, error) {
	for _, c := range e.openIn(s.id) { // those of the same id are others from here on
		end := killed("the sandbox was brought to another snapshot")
		e.tellEnd(ctx, rec, c.issued, end, end.Exit)
	}
	if foreign {
		q := &meta.Quarantine{Since: e.Now().UTC(), At: rec.Head, Reason: underWay}
		if err := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Quarantine = q; return nil }); err != nil {
			img.release()
			return nil, err
		}
		rec.Quarantine = q
	}
	b, ids, err := e.goOn(ctx, s, rec, img)
	if err == nil && !foreign {
		if err = b.Release(ctx); err != nil {
			err = errors.Join(err, e.stopBox(ctx, s, 0))
		}
	}
	if err != nil {
		return nil, fault.Wrap(err, "sandbox %s is at snapshot %s, but its processes do not go on", rec.Name, rec.Head)
	}
	return append([]string{}, ids...), nil
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
