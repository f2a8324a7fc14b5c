//go:build linux

package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/livefiles"
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
	changed, err := e.budgets.MayChange(ctx, &rec)
	if err != nil {
		return wire.CommitResult{}, err
	}
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseManual, message: message})
	if t.changed {
		changed()
	}
	return committed(&rec, t), err
}

// CommitMemory takes a snapshot of the present together with the memory of its processes. When it returns, both are
// durable.
func (e *Engine) CommitMemory(ctx context.Context, name, message string) (wire.CommitResult, error) {
	s, rec, err := e.acquire(ctx, name, "committing")
	if err != nil {
		return wire.CommitResult{}, err
	}
	defer s.unlock(e)
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseManual, message: message, memory: true})
	if err == nil {
		err = e.Upkeep.Secure(ctx)
	}
	return committed(&rec, t), err
}

// Checkout captures the present, and then rewinds a sandbox to a snapshot.
func (e *Engine) Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error) {
	if req.GraceMS > 0 && !limit.InLife(req.GraceMS) {
		return wire.MoveResult{}, fault.New(fault.Invalid, "invalid grace_ms %d: the limit is 100 years", req.GraceMS).
			WithHint("use a shorter time: coppice rewind %s %s --grace 10s", name, req.Node)
	}
	m, err := e.move(ctx, name, "rewinding to "+req.Node, req,
		func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
			id, err := h.Resolve(req.Node, e.Now())
			if snap := h.Snapshots[id]; err == nil && snap.Memory != nil && !req.FilesOnly && !req.InPlace {
				to.memory, err = e.Images.Resumable(rec, snap)
				to.foreign = snap.Sandbox != rec.ID || snap.Cause == timeline.CauseFork
			}
			to.clean, to.dirty = id, id
			return to, err
		})
	if err == nil && m.Resumed != nil {
		err = e.Restorer.Release(ctx, name)
	}
	return m, err
}

// Undo rewinds by req.N snapshots. Changes since HEAD count as the first.
func (e *Engine) Undo(ctx context.Context, name string, req wire.UndoRequest) (wire.MoveResult, error) {
	n := max(1, req.N)
	return e.move(ctx, name, "undoing", wire.CheckoutRequest{InPlace: req.InPlace},
		func(h *timeline.History, rec *meta.Sandbox) (to target, err error) {
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

// Redo reverts the last undo.
func (e *Engine) Redo(ctx context.Context, name string, req wire.RedoRequest) (wire.MoveResult, error) {
	return e.move(ctx, name, "redoing", wire.CheckoutRequest{InPlace: req.InPlace},
		func(h *timeline.History, rec *meta.Sandbox) (target, error) {
			id, left, err := h.Redo(rec.Redo)
			return target{clean: id, dirty: id, redo: func(timeline.SnapshotID) []timeline.SnapshotID { return left }}, err
		})
}

// target is the destination of a rewind: clean if the present equals HEAD, dirty if it has changes. redo computes the
// new redo list from the HEAD before the rewind; nil empties the list.
type target struct {
	clean, dirty timeline.SnapshotID
	redo         func(from timeline.SnapshotID) []timeline.SnapshotID
	memory       *timeline.Memory // image to resume processes from; nil: none are resumed
	foreign      bool             // memory is that of another sandbox's processes
}

// move captures the present and then brings the sandbox to a snapshot. Its processes are killed while the capture has
// them frozen, so that the snapshot is exactly what they left, and the next start mounts the target's stack. In
// place, they resume with the files of the target; see rewind.
//
// The target is chosen before the capture, so that HEAD is the one that the user saw. If an undo finds uncaptured
// changes, it undoes these first.
//
// Processes of a sandbox with a supervised command are first asked to exit. Their last writes are captured as well,
// and the command is started again.
func (e *Engine) move(
	ctx context.Context, name, what string, req wire.CheckoutRequest,
	choose func(*timeline.History, *meta.Sandbox) (target, error),
) (wire.MoveResult, error) {
	var s *held
	var rec meta.Sandbox
	err := e.Files.Alone(ctx, func() (_ timeline.SandboxID, _ livefiles.Held, err error) {
		s, rec, err = e.acquire(ctx, name, what)
		return rec.ID, filesHeld{e, s}, err
	})
	if err != nil {
		return wire.MoveResult{}, err
	}
	defer s.unlock(e)
	h, err := e.Histories.History(ctx, &rec)
	if err != nil {
		return wire.MoveResult{}, err
	}
	goal, err := choose(h, &rec)
	if err != nil {
		return wire.MoveResult{}, err
	}
	changed, err := e.budgets.MayChange(ctx, &rec)
	if err != nil {
		return wire.MoveResult{}, err
	}
	changed()
	m := &moving{Engine: e, s: s, rec: &rec, what: what, req: req, goal: goal}
	defer func() {
		if m.img != nil {
			m.img.Release()
		}
	}()
	if err := m.keepPresent(ctx); err != nil {
		return m.res, err
	}
	m.aim(h)
	begun := false
	var after error // the error of a step after the move itself
	err = e.Book.Do(ctx, m.rollback(ctx), func(ctx context.Context) error {
		begun = true
		err := m.carryOut(ctx)
		if rec.Head == m.to {
			e.Tournaments.EndTrial(rec.ID, "was rewound")
			after, err = err, nil
		}
		return err
	})
	if !begun {
		err = errors.Join(err, e.remain(ctx, s, m.t))
	}
	return m.res, cmp.Or(err, after)
}

// moving is a move in progress.
type moving struct {
	*Engine
	s    *held
	rec  *meta.Sandbox
	what string
	req  wire.CheckoutRequest
	goal target

	img  *images.Image // image to resume processes from; nil: none, or already passed to Restore
	t    taken         // the result of capturing the present
	to   timeline.SnapshotID
	left []timeline.SnapshotID // the redo list afterwards
	res  wire.MoveResult
}

// keepPresent captures the present, and leaves the processes frozen or ends them.
func (m *moving) keepPresent(ctx context.Context) (err error) {
	m.res.From = string(m.rec.Head)
	run, _ := m.Commands.Supervised(m.s.Held)
	grace := graceOf(m.req, run != nil)
	n := note{cause: timeline.CauseCheckout, message: "before " + m.what}
	if m.goal.memory != nil {
		if m.img, err = m.Images.Ready(ctx, m.rec, m.goal.clean, m.goal.memory); err != nil {
			return err
		}
		if n.memory, err = m.worthMemory(ctx); err != nil {
			return err
		}
		grace = 0 // paused processes are in the history, and can be resumed from there
	}
	n.frozen = grace == 0
	m.t, err = m.capture(ctx, m.s, m.rec, n)
	if err == nil && !m.req.InPlace && m.img == nil {
		if err = m.Commands.WillRestart(ctx, m.s.Held, m.rec); err != nil && m.t.frozen != nil {
			err = errors.Join(err, m.t.frozen.Thaw())
		}
	}
	if err == nil && grace > 0 {
		m.t, err = m.interrupt(ctx, m.s, m.rec, m.t, grace)
	}
	if err != nil {
		return fault.Wrap(err, "capture the current state of sandbox %s", m.rec.Name)
	}
	if m.t.changed {
		m.res.Kept = string(m.t.id)
	}
	return nil
}

// aim decides the target once it is known whether the present had changes.
func (m *moving) aim(h *timeline.History) {
	if m.to = m.goal.clean; m.t.changed {
		m.to = m.goal.dirty
	}
	if m.goal.redo != nil {
		m.left = m.goal.redo(m.rec.Head)
	}
	m.res.Head, m.res.Message = string(m.to), h.Snapshots[m.to].Message
	m.res.InPlace = m.req.InPlace && m.t.frozen != nil && m.t.procs > 0
}

// rollback returns the records of the move.
func (m *moving) rollback(ctx context.Context) []ledger.Draft {
	return m.Book.Drafts(ctx, m.rec, audit.ByDaemon(&format.Rollback{
		From: string(m.rec.Head), To: m.res.Head, InPlace: m.res.InPlace, Memory: imageOf(m.goal.memory),
	})...)
}

// carryOut brings the sandbox to the target, and resumes its processes from memory if it has an image.
func (m *moving) carryOut(ctx context.Context) (err error) {
	if m.res.InPlace {
		m.res.Rewritten, err = m.rewind(context.WithoutCancel(ctx), m.s, m.rec, m.t, m.to, m.what, m.left)
		if err == nil {
			m.Feed.Emit(events.Moved(m.rec, m.res, m.what))
		}
		return err
	}
	m.res.Stopped = m.t.procs
	if err := m.stopBox(ctx, m.s, 0); err != nil {
		return err
	}
	if err := m.reset(ctx, m.s, m.rec, m.to, m.left); err != nil {
		return err
	}
	m.Feed.Emit(events.Moved(m.rec, m.res, m.what))
	if from := m.img; from != nil {
		m.img = nil // Restore releases it
		m.Commands.EndMoved(ctx, m.s.Held, m.rec)
		m.res.Resumed, err = m.Restorer.Restore(ctx, restoreHeld{m.Engine, m.s}, m.rec, from, m.goal.foreign)
		return err
	}
	if m.rec.Quarantine != nil { // the processes of the other sandbox have exited
		err := m.DB.UpdateSandbox(ctx, m.s.ID, func(r *meta.Sandbox) error { r.Quarantine = nil; return nil })
		if err != nil {
			return err
		}
		m.rec.Quarantine = nil
	}
	m.res.Restarted, err = m.Commands.Restart(ctx, commandHeld{m.Engine, m.s}, m.rec)
	return err
}

// worthMemory reports whether there are processes whose memory is stored before they are killed.
func (m *moving) worthMemory(ctx context.Context) (bool, error) {
	b := m.liveBox(m.s)
	if b == nil || m.rec.Quarantine != nil {
		return false, nil
	}
	n, err := b.Procs(ctx)
	return n > 0, err
}

// remain resumes a sandbox whose move failed before it began. If a supervised command was stopped for the move, it
// starts again, as WillRestart has recorded.
func (e *Engine) remain(ctx context.Context, s *held, t taken) error {
	if t.frozen == nil {
		return nil
	}
	err := t.frozen.Thaw()
	if run, _ := e.Commands.Supervised(s.Held); run == nil {
		return err
	}
	return errors.Join(err, e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Again = false; return nil }))
}

// runGrace is the time between SIGTERM and SIGKILL for a supervised command whose sandbox is rewound.
const runGrace = 2 * time.Second

// graceOf returns the time between SIGTERM and SIGKILL in a rewind: for a supervised command that of the request, or
// runGrace. It is 0 for a rewind in place and without a supervised command.
func graceOf(req wire.CheckoutRequest, supervised bool) time.Duration {
	switch {
	case !supervised || req.InPlace || req.GraceMS < 0:
		return 0
	case req.GraceMS == 0:
		return runGrace
	}
	return time.Duration(req.GraceMS) * time.Millisecond
}

// interrupt asks the processes to exit, and kills them after the grace. Their last writes are captured as a snapshot
// after that of t.
func (e *Engine) interrupt(
	ctx context.Context, s *held, rec *meta.Sandbox, t taken, grace time.Duration,
) (taken, error) {
	if err := e.stopBox(ctx, s, grace); err != nil {
		return t, err
	}
	last, err := e.capture(ctx, s, rec, note{cause: timeline.CauseCheckout, message: "written while it was stopped"})
	last.changed, last.procs = last.changed || t.changed, t.procs
	return last, err
}

// reset gives a sandbox a new generation that starts from a snapshot. Its box must be stopped. The old generation is
// deleted later; everything in it is captured.
func (e *Engine) reset(
	ctx context.Context, s *held, rec *meta.Sandbox, to timeline.SnapshotID, redo []timeline.SnapshotID,
) error {
	old, head := e.genDir(rec), rec.Head
	err := e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
		r.Head, r.MountTop, r.Gen, r.Redo = to, to, r.Gen+1, redo
		return nil
	})
	if err != nil {
		return err
	}
	rec.Head, rec.MountTop, rec.Gen, rec.Redo = to, to, rec.Gen+1, redo
	s.index, s.of = nil, ""
	e.indexes.drop(s.ID, head)
	e.Upkeep.Retire(old)
	return nil
}
