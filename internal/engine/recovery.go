//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// recovery is the phase of Open that takes over from an earlier daemon. First, home makes the files and records of
// the home consistent. Then run takes over the boxes that still run, since a keeper outlives its daemon: it finds the
// keepers that live, and records what exited keepers had not reported, before the engine does anything else.
type recovery struct{ *Engine }

// errUnanswered is the cause of an error about a sandbox that may be live and cannot be inspected.
var errUnanswered = errors.New("its monitor does not answer")

// keepersAtOnce is how many keepers are asked concurrently.
const keepersAtOnce = 16

// run takes over all sandboxes. A failure with one is logged, and does not delay the others. Entries that were added
// to their journals while no daemon ran become records in the background: there may be many, and each operation that
// needs these records makes them itself.
func (e recovery) run(ctx context.Context) error {
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for i, a := range e.attachAll(ctx, recs) {
		if err := e.sandbox(ctx, &recs[i], a); err != nil {
			if ctx.Err() != nil {
				return err
			}
			e.Logger.Error("could not attach to a running sandbox; will try again", "sandbox", recs[i].Name, "err", err)
			e.bg.Go(func() error { e.retry(e.bgCtx, recs[i].ID); return nil })
		}
	}
	e.bg.Go(func() error { e.recordJournals(e.bgCtx, recs); return nil })
	return nil
}

// attached is the result of looking for a keeper.
type attached struct {
	box   Box             // nil: none found
	execs []wire.ExecInfo // its commands
	doubt error           // why it is unknown whether there is a box; nil if it is known
}

// attachAll looks for the keepers of all sandboxes. A sandbox whose keeper has not answered in time is in doubt.
func (e recovery) attachAll(ctx context.Context, recs []meta.Sandbox) []attached {
	ctx, cancel := context.WithTimeout(ctx, limit.RecoverSeconds*time.Second)
	defer cancel()
	all := make([]attached, len(recs))
	var asking errgroup.Group
	asking.SetLimit(keepersAtOnce)
	for i := range recs {
		asking.Go(func() error {
			all[i] = e.attach(ctx, recs[i].ID)
			return nil
		})
	}
	_ = asking.Wait() // no function returns an error
	return all
}

func (e recovery) attach(ctx context.Context, id timeline.SandboxID) attached {
	b, err := e.Boxes.Attach(ctx, e.runDir(id))
	switch {
	case fault.Is(err, fault.NotFound):
		return attached{}
	case err != nil:
		return attached{doubt: err}
	}
	// The keeper answers, but its init may not.
	soon, cancel := context.WithTimeout(ctx, limit.RecoverSeconds*time.Second)
	defer cancel()
	execs, err := b.Execs(soon)
	if err != nil && soon.Err() != nil {
		return attached{doubt: err}
	}
	if err != nil {
		e.Logger.Warn("could not attach to the commands of an earlier daemon", "sandbox", id, "err", err)
	}
	return attached{box: b, execs: execs}
}

// sandbox takes over one sandbox.
func (e recovery) sandbox(ctx context.Context, rec *meta.Sandbox, a attached) error {
	if err := e.indexes.sweep(rec.ID, rec.Head); err != nil {
		e.Logger.Warn("could not remove old indexes", "sandbox", rec.Name, "err", err) // its box is still taken over
	}
	idle := a.box == nil && a.doubt == nil
	if idle {
		e.ended(ctx, rec)
	}
	runs := rec.Run != nil && rec.Run.Ended == nil
	if idle && !runs && rec.IdleStopMS == 0 && e.register.In(rec.ID) == 0 {
		return nil
	}
	s, err := e.lock(ctx, e.entry(rec.ID), "recovering its processes")
	if err != nil {
		return err
	}
	defer s.unlock(e.Engine)
	s.name = rec.Name
	if s.doubt = a.doubt; s.doubt != nil {
		return a.doubt
	}
	e.box(ctx, s, rec, a)
	return nil
}

// ended records what a keeper had not reported to a daemon before it exited.
func (e recovery) ended(ctx context.Context, rec *meta.Sandbox) {
	e.programs.Finish(ctx, rec.ID)
	e.Egress.NoteHalt(ctx, rec)
}

// retry asks a keeper that did not answer in time until it does, or has exited.
func (e recovery) retry(ctx context.Context, id timeline.SandboxID) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		s, _, err := e.acquire(ctx, string(id), "recovering its processes") // acquire settles the doubt
		if err == nil {
			s.unlock(e.Engine)
			return
		}
		if fault.Is(err, fault.NotFound) {
			return
		}
	}
}

// recordJournals makes records of the journal entries of sandboxes that are not recorded yet.
func (e recovery) recordJournals(ctx context.Context, recs []meta.Sandbox) {
	for i := range recs {
		if ctx.Err() != nil {
			return
		}
		if e.journals.Has(recs[i].ID) {
			e.journals.CatchUp(ctx, recs[i].ID)
		}
	}
}

// box follows a live box, and the commands of the sandbox.
func (e recovery) box(ctx context.Context, s *held, rec *meta.Sandbox, a attached) {
	b := a.box
	if b != nil {
		s.box, s.announced, s.mapped = b, b, true // mapped: the safe assumption
		e.watch(s.entry, b)
		e.Lifetimes.WakeIdle()
		e.Egress.WatchPorts(s.ID, b)
		if rec.Tier == tierGVisor && rec.Quarantine == nil { // a killed daemon may not have released it
			soon, cancel := context.WithTimeout(ctx, egress.PolicyPatience)
			err := b.Release(soon)
			cancel()
			if err != nil {
				e.Logger.Warn("could not open the gate of a sandbox that was resumed from memory", "sandbox", s.ID, "err", err)
			}
		}
		e.Egress.Renew(ctx, rec, b)
		given, err := e.DB.Grants(ctx, s.ID)
		e.Egress.ResumeQuestions(ctx, rec, b, rec.GrantsLater || len(given) > 0 || err != nil)
		if e.Egress.HasDecoys(s.ID) {
			e.Egress.WatchDecoys(s.ID, b, e.Now())
		}
		if _, err := os.Lstat(e.journalDir(s.ID)); err == nil {
			e.watchJournal(s.ID, b, policies.Gated(rec) || e.Egress.HasDecoys(s.ID))
		}
		e.watchPrograms(ctx, s, rec, b, nil)
	}
	e.Commands.TakeUp(ctx, commandHeld{e.Engine, s}, rec, b, a.execs)
}

// dropTrials removes the forks of trials, and of tournaments in progress, of an earlier daemon that was killed, with
// their processes: their clients are gone. It waits until they are removed, but at most limit.RecoverSeconds,
// since their files may be many. One that could not be removed is tried again.
func (e recovery) dropTrials(ctx context.Context) error {
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	var removing errgroup.Group
	removing.SetLimit(limit.Removals)
	for i := range recs {
		if rec := &recs[i]; rec.Trial != nil {
			removing.Go(func() error { e.dropTrial(rec); return nil })
		}
	}
	done := make(chan struct{})
	e.bg.Go(func() error { defer close(done); return removing.Wait() })
	select {
	case <-done:
	case <-time.After(limit.RecoverSeconds * time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// dropTrial removes one fork, however long that takes.
func (e recovery) dropTrial(rec *meta.Sandbox) {
	if parent, err := e.DB.Sandbox(e.bgCtx, string(rec.Trial.Of)); err == nil && rec.Trial.Inside {
		e.Book.Note(e.bgCtx, &parent, audit.Statement{By: format.BySandbox, Body: &format.Trial{
			Ended: "the daemon was killed", Exit: tournament.ExitNotRun, Fork: string(rec.ID)}})
	}
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := e.removeOne(e.bgCtx, string(rec.ID), true)
		if err == nil || fault.Is(err, fault.NotFound) {
			e.Logger.Info("removed the fork of a trial that the previous daemon had not ended", "sandbox", rec.Name)
			return
		}
		if e.bgCtx.Err() == nil {
			e.Logger.Error("could not remove the fork of an interrupted trial; will try again", "sandbox", rec.Name, "err", err)
		}
		select {
		case <-e.bgCtx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// settleDoubt asks a keeper again that did not answer earlier. A sandbox that may be live is left alone, since its
// files would change under its processes.
func (e *Engine) settleDoubt(ctx context.Context, s *held, rec *meta.Sandbox) error {
	if s.doubt == nil {
		return nil
	}
	r := recovery{e}
	a := r.attach(ctx, rec.ID)
	if fault.Is(a.doubt, fault.Conflict) { // its keeper has ended, but not all processes
		return fault.Wrap(a.doubt, "sandbox %s has not ended", rec.Name)
	}
	if a.doubt != nil {
		return fault.New(fault.Unavailable, "sandbox %s may be running", rec.Name).
			Because(fmt.Errorf("%w: %w", errUnanswered, a.doubt)).
			WithHint("try again, or stop it: coppice stop %s", rec.Name)
	}
	s.doubt = nil
	if a.box == nil {
		r.ended(ctx, rec)
	}
	r.box(ctx, s, rec, a)
	return nil
}
