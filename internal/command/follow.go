//go:build linux

package command

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A sandbox is captured automatically while commands run in it. The box reports at almost no cost whether a process
// has run since the last call. While none has, no file can have changed. When one has, the live root is compared
// without pausing any process. It is captured when the changes have been quiet for a while, or have waited long
// enough. A command that has not run for long enough costs nothing but a goroutine that sleeps, which all commands of
// the sandbox share.

// follower captures the changes of the processes of a box, as long as commands run in it that ask for this. A box has
// at most one, whatever the number of commands. The fields are guarded by the lock of the sandbox.
type follower struct {
	box    Box
	rested time.Time // until when it rests
	until  time.Time // when it looks again; zero: when a process has run
	rouse  func()    // makes it look now; does nothing if it does not wait
}

// captureDuring captures the changes of the processes of a box automatically while a command runs in it, if the
// command asks for that.
func (r *Runner) captureDuring(s *held, b Box, c *command) {
	how, supervised := c.req.Capture, s.run == c
	if supervised {
		how = c.run.Capture
	}
	started := time.Now()
	if c.found {
		started = earlier(c.at, started)
	}
	if c.terms = newTerms(how, supervised, started); c.terms.none() {
		return
	}
	if f := s.follower; f != nil && f.box == b {
		if c.terms.hurries(f.until, f.rested) {
			f.rouse()
		}
		return
	}
	f := &follower{box: b, rouse: func() {}}
	s.follower = f
	p := s.at
	r.c.Go(func(ctx context.Context) { r.follow(ctx, p, f) })
}

// captureOver ends the follower of a sandbox if it waits for a process to run and no command is left that asks for it.
func (r *Runner) captureOver(s *held) {
	f := s.follower
	if f == nil || !f.until.IsZero() { // it looks in any case
		return
	}
	if t, next := schedule(r.termsOf(s), time.Now()); t.none() && next.IsZero() {
		f.rouse()
	}
}

// termsOf returns the terms of the commands of a sandbox.
func (r *Runner) termsOf(s *held) (all []terms) {
	for _, c := range r.c.Register.in(s.at.id) {
		all = append(all, c.terms)
	}
	if s.run != nil { // it is not open if an earlier daemon could not record its start
		all = append(all, s.run.terms)
	}
	return all
}

// CaptureLater makes the automatic captures of a sandbox look for changes, which they do not do otherwise unless a
// process of the box has run. It reports whether changes are captured automatically now.
func (r *Runner) CaptureLater(h Held) bool {
	s := r.with(h)
	f := s.follower
	if f == nil || s.Box() != f.box {
		return false
	}
	if t, _ := schedule(r.termsOf(&s), time.Now()); t.none() {
		return false
	}
	f.rouse()
	return true
}

// follow is the goroutine of a follower. It ends when no command is left that asks for it, or the box has exited.
//
// While the box cannot say whether a process has run, as when this process has no descriptor left to ask it, the
// follower looks at an interval.
func (r *Runner) follow(ctx context.Context, p *place, f *follower) {
	for clock, blind := uint64(0), false; ctx.Err() == nil; {
		wait, rest, until := r.lookOver(ctx, p, f, blind || clock != 0)
		if wait == nil {
			return
		}
		sleep(wait, rest)
		if !until.IsZero() {
			sleep(wait, time.Until(until))
			continue
		}
		now, err := f.box.Active(wait, clock)
		blind = err != nil && wait.Err() == nil
		switch {
		case err == nil:
			clock = now
		case !blind:
		case fault.Is(err, fault.Unavailable):
			r.dismiss(ctx, p, f)
			return
		default:
			r.c.Log.Error("cannot learn whether processes of a sandbox have run", "sandbox", p.id, "err", err)
			sleep(wait, blindly)
		}
	}
}

// dismiss makes the next command of a sandbox start another follower.
func (r *Runner) dismiss(ctx context.Context, p *place, f *follower) {
	s, err := r.lock(ctx, p, "looking for changes")
	if err != nil {
		return // the sandbox was removed
	}
	defer s.unlock()
	f.rouse()
	if s.follower == f {
		s.follower = nil
	}
}

// lookOver looks once for changes, if a process has run, and captures them if that is due. The follower then rests, so
// that looking takes no more than its share, and waits until the time returned or, if it is zero, until a process has
// run. wait is canceled when the follower is to look earlier; nil: the follower has ended.
func (r *Runner) lookOver(ctx context.Context, p *place, f *follower, ran bool) (
	wait context.Context, rest time.Duration, until time.Time,
) {
	s, err := r.lock(ctx, p, "looking for changes")
	if err != nil {
		return nil, 0, until
	}
	defer s.unlock()
	f.rouse()
	began := time.Now()
	t, next := schedule(r.termsOf(s), began)
	if s.follower != f || s.Box() != f.box || t.none() && next.IsZero() {
		if s.follower == f {
			s.follower = nil
		}
		return nil, 0, until
	}
	left := time.Duration(-1)
	if ran && !t.none() {
		left = r.catchUp(ctx, s, t.pace)
		rest = min(time.Since(began)*share, t.rest)
		if !next.IsZero() {
			rest = min(rest, time.Until(next))
		}
	}
	now := time.Now()
	f.until, f.rested = nextLook(t, next, left, now), now.Add(rest)
	wait, f.rouse = context.WithCancel(ctx)
	return wait, rest, f.until
}

// catchUp looks for changes, and captures them if that is due. It returns how long to wait for the next look,
// negative if nothing is left to do.
func (r *Runner) catchUp(ctx context.Context, s *held, pc pace) (wait time.Duration) {
	rec, err := r.c.Records.Sandbox(ctx, string(s.at.id))
	if err != nil {
		r.c.Log.Error("could not look for changes of a sandbox", "sandbox", s.at.id, "err", err)
		return pc.max
	}
	l, err := s.Look(ctx, &rec)
	if err == nil {
		left, some := pc.due(l.Glance, l.Since, l.Mapped, l.Last, time.Now())
		if !some {
			return -1
		}
		if left > 0 {
			return left
		}
		if left, err = r.CaptureByItself(ctx, s, &rec); left > 0 {
			return left
		}
	}
	if err != nil && ctx.Err() == nil {
		// A full disk may get space again, so retry while there are changes.
		r.c.Log.Error("could not capture the changes of a sandbox", "sandbox", rec.Name, "err", err)
		return pc.max
	}
	return -1
}

// CaptureByItself takes an automatic snapshot of the changes of a sandbox's processes, or returns how long to wait
// for the budget of automatic snapshots.
func (r *Runner) CaptureByItself(ctx context.Context, h Held, rec *meta.Sandbox) (wait time.Duration, err error) {
	left, err := r.c.Budgets.Of(ctx, rec.ID)
	if err != nil {
		return 0, err
	}
	if wait = left.Wait(r.c.Now(), audit.ClassCaptures); wait > 0 {
		return wait, nil
	}
	t, err := h.Capture(ctx, rec, Note{Cause: timeline.CauseAuto, Aside: true})
	if t.Changed {
		left.Spent(r.c.Now(), audit.ClassCaptures, 1)
	}
	return 0, err
}

// sleep waits for a time, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
	}
}
