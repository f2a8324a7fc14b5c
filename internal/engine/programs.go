//go:build linux

package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The programs that a box tells of become records when a command ends, and else after
// limit.ProgramsInterval: those with the same file are one, with a list of all of them. The last
// of the records that are written at once says up to which event they tell (Through). So
// whoever comes after a crash finds in the ledger where to go on, and the keeper has what
// follows: nothing is told twice or left out.

// programRest is how long the events of a box gather.
const programRest = time.Second

// boxPrograms are the programs of one box on their way to the ledger.
type boxPrograms struct {
	box  Box
	done chan struct{} // closed when all is recorded that there will be

	mu    sync.Mutex        // held while records are made and written; after the sandbox's lock
	known bool              // guarded by mu; what follows is known
	after uint64            // guarded by mu; the last event that is in sum or in records
	kept  uint64            // guarded by mu; the last that is in records
	sum   *audit.ProgramSum // guarded by mu
	since time.Time         // guarded by mu; when the first in sum came; zero: there is none
	// guarded by mu; the last records had losses: the next ones with losses wait for their interval
	short bool
}

func newBoxPrograms(b Box, known bool) *boxPrograms {
	return &boxPrograms{box: b, done: make(chan struct{}), known: known, sum: audit.NewProgramSum(limit.ProgramGroups)}
}

// seesPrograms reports whether a box is to tell which programs are started in it.
func seesPrograms(rec *meta.Sandbox) bool { return policies.Gated(rec.Tier) || supervises(rec) }

// tracesPrograms is seesPrograms for a box that is started. In tier gvisor nothing is seen where
// nothing is to be recorded.
func tracesPrograms(rec *meta.Sandbox, kept policy.Evidence) bool {
	return seesPrograms(rec) && (rec.Tier != tierGVisor || kept.Programs.Value != policy.ProgramsNone)
}

// watchPrograms records the programs of a box while it lives, unless its policy wants none. started
// is the record of its start, or nil for one that an earlier daemon started. The caller holds the
// sandbox's lock.
func (e *Engine) watchPrograms(ctx context.Context, s *held, rec *meta.Sandbox, b Box, started *audit.Pending) {
	if kept, err := e.Policies.Evidence(ctx, rec); !seesPrograms(rec) || err == nil &&
		kept.Programs.Value == policy.ProgramsNone {
		return
	}
	p := newBoxPrograms(b, started != nil)
	s.programs = p
	e.bg.Go(func() error {
		defer close(p.done)
		if started == nil || started.Wait() == nil {
			e.followPrograms(e.bgCtx, s.ID, p)
		}
		return nil
	})
}

// awaitPrograms waits until what the last box told is recorded. The caller holds the
// sandbox's lock, and the box has ended.
func (s *held) awaitPrograms(ctx context.Context) error {
	if s.programs == nil {
		return nil
	}
	s.ending.written(errors.New("the follower of the programs writes them")) // or it would wait for us
	select {
	case <-s.programs.done:
		s.programs = nil
		return nil
	case <-ctx.Done():
		return fault.New(fault.Cancelled, "the programs of sandbox %s are not all recorded yet", s.ID).
			Because(context.Cause(ctx))
	}
}

func (e *Engine) followPrograms(ctx context.Context, id timeline.SandboxID, p *boxPrograms) {
	for ctx.Err() == nil {
		err := e.fetchPrograms(ctx, id, p)
		if fault.Is(err, fault.Unsupported) || fault.Is(err, fault.NotFound) { // not recorded; or removed
			return
		}
		if err != nil && !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
			e.Logger.Error("programs are not in the ledger yet", "sandbox", id, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-p.box.Gone():
			if err := e.lastPrograms(ctx, id, p); err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil {
				e.Logger.Error("the last programs are not in the ledger", "sandbox", id, "err", err)
			}
			return
		case <-time.After(programRest):
		}
	}
}

// fetchPrograms waits for events of a box, or until those that are there are due, and
// records these.
func (e *Engine) fetchPrograms(ctx context.Context, id timeline.SandboxID, p *boxPrograms) error {
	p.mu.Lock()
	err := e.learnPrograms(ctx, id, p)
	after, kept, since := p.after, p.kept, p.since
	p.mu.Unlock()
	if err != nil {
		return err
	}
	wait, cancel := context.WithCancel(ctx)
	if !since.IsZero() {
		wait, cancel = context.WithTimeout(ctx, limit.ProgramsInterval-time.Since(since))
	}
	evs, err := p.box.Programs(wait, after, kept)
	due := !since.IsZero() && wait.Err() != nil
	cancel()
	if err != nil && !due {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.take(evs)
	}
	if due || p.sum.Bytes() >= limit.ProgramsHeld || p.sum.Lost() > 0 && !p.short ||
		time.Since(p.since) >= limit.ProgramsInterval && !p.since.IsZero() {
		return e.writePrograms(ctx, id, p)
	}
	return nil
}

// take takes events that it has not had. p.mu is held.
func (p *boxPrograms) take(evs wire.ProgramEvents) {
	if evs.Next <= p.after {
		return
	}
	list := evs.Events
	for len(list) > 0 && list[0].Seq <= p.after {
		list = list[1:]
	}
	p.sum.Add(list, int64(evs.Next-p.after)-int64(len(list)))
	p.after = evs.Next
	if p.since.IsZero() && (p.sum.Len() > 0 || p.sum.Lost() > 0) {
		p.since = time.Now()
	}
}

// learnPrograms finds in the ledger up to which event there are records. p.mu is held.
func (e *Engine) learnPrograms(ctx context.Context, id timeline.SandboxID, p *boxPrograms) error {
	if p.known {
		return nil
	}
	if _, err := e.Ledger.Last(ctx, format.Sandbox(id)); err != nil { // what was appended can be read
		return err
	}
	through := int64(0)
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(id),
		ledger.Filter{Kinds: []format.Kind{format.KindStart, format.KindProgram, format.KindLost}}) {
		if err != nil {
			return err
		}
		switch b := r.Body.(type) {
		case *format.Start: // another box counts from 1
			through = 0
		case *format.Program:
			through = max(through, b.Through)
		case *format.Lost:
			through = max(through, b.Through)
		}
	}
	p.after, p.kept, p.known, p.since = uint64(through), uint64(through), true, time.Time{}
	p.sum = audit.NewProgramSum(limit.ProgramGroups)
	return nil
}

// writePrograms records what is in sum. p.mu is held.
func (e *Engine) writePrograms(ctx context.Context, id timeline.SandboxID, p *boxPrograms) error {
	rec, err := e.DB.Sandbox(ctx, string(id))
	if err != nil {
		return err
	}
	tell, err := e.programRecords(ctx, &rec, p)
	if err == nil && len(tell) > 0 {
		err = e.Book.Record(ctx, &rec, tell...)
	}
	p.written(err)
	return err
}

// written says whether what is in sum is recorded: with an error it may be. p.mu is held.
func (p *boxPrograms) written(err error) {
	if err != nil {
		p.known = false
		return
	}
	p.sum.Clear()
	p.kept, p.since = p.after, time.Time{}
}

// endingPrograms are records of programs that are being written with the end of a command.
// Meanwhile the follower of their box waits.
type endingPrograms struct {
	tell []audit.Statement
	of   *boxPrograms // whose lock is held; nil: none is
}

// records gives those that are still to be written.
func (n *endingPrograms) records() []audit.Statement {
	if n == nil {
		return nil
	}
	return n.tell
}

// written says how that went, and lets the follower go on. It may be called again.
func (n *endingPrograms) written(err error) {
	if n == nil || n.of == nil {
		return
	}
	n.of.written(err)
	n.of.mu.Unlock()
	n.of, n.tell = nil, nil
}

// endPrograms gives the records of the programs of a box whose command has ended, as far as
// they are there, for the caller to write with its end. He holds the sandbox's lock, until
// he has said that they are written.
func (e *Engine) endPrograms(ctx context.Context, s *held, rec *meta.Sandbox) *endingPrograms {
	p := s.programs
	if p == nil {
		return nil
	}
	p.mu.Lock()
	s.ending = &endingPrograms{of: p}
	for more := p.known; more; {
		evs, err := p.box.ProgramsNow(ctx, p.after, p.kept)
		if more = err == nil && len(evs.Events) > 0 && p.sum.Bytes() < limit.ProgramsHeld; more {
			p.take(evs)
		}
	}
	if !p.known {
		return s.ending
	}
	tell, err := e.programRecords(ctx, rec, p)
	if err != nil {
		e.Logger.Error("programs are not in the ledger yet", "sandbox", s.ID, "err", err)
		s.ending.written(err)
		return s.ending
	}
	s.ending.tell = tell
	return s.ending
}

// lastPrograms records what a box that has ended has left. It may be called again.
func (e *Engine) lastPrograms(ctx context.Context, id timeline.SandboxID, p *boxPrograms) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := e.learnPrograms(ctx, id, p); err != nil {
		return err
	}
	left, err := e.Boxes.LeftPrograms(e.runDir(id), e.journalAt(id).Key)
	why := ""
	switch {
	case err == nil:
		p.take(left)
	case fault.Is(err, fault.Corrupt):
		why = "what the keeper left is damaged, or sealed by a key that is lost"
	case !fault.Is(err, fault.NotFound):
		return err
	case p.after > 0: // else perhaps none began
		why = "the keeper was killed; what it had not told is not known"
	}
	if why != "" {
		if rec, err := e.DB.Sandbox(ctx, string(id)); err == nil {
			e.Book.Note(ctx, &rec, audit.ByDaemon(&format.Lost{Of: string(format.KindProgram), Reason: why})...)
		}
	}
	if err := e.writePrograms(ctx, id, p); err != nil {
		return err
	}
	return e.Boxes.ForgetPrograms(e.runDir(id))
}

// leftPrograms records what a box has left that ended while no daemon ran.
func (e *Engine) leftPrograms(ctx context.Context, id timeline.SandboxID) {
	if _, err := e.Boxes.LeftPrograms(e.runDir(id), e.journalAt(id).Key); fault.Is(err, fault.NotFound) {
		return
	}
	if err := e.lastPrograms(ctx, id, newBoxPrograms(nil, false)); err != nil {
		e.Logger.Error("the last programs are not in the ledger", "sandbox", id, "err", err)
	}
}
