//go:build linux

package command

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A sandbox with a supervised command is captured automatically. The box reports at almost no cost whether a process
// has run since the last call. While none has, no file can have changed. When one has, the live root is compared
// without pausing any process. It is captured when the changes have been quiet for a while, or have waited long
// enough.

const (
	defaultQuiet = 200 * time.Millisecond
	defaultMax   = 2 * time.Second
	leastQuiet   = 10 * time.Millisecond
	// share limits the time spent on looking to one part in this many.
	share = 20
)

// pace says when automatic snapshots are taken.
type pace struct{ quiet, max time.Duration }

func newPace(c wire.Capture) (pace, error) {
	p := pace{time.Duration(c.QuietMS) * time.Millisecond, time.Duration(c.MaxMS) * time.Millisecond}
	if p.quiet == 0 {
		p.quiet = defaultQuiet
	}
	if p.max == 0 {
		p.max = max(defaultMax, p.quiet)
	}
	if p.quiet < leastQuiet || p.max < p.quiet || p.max > 24*time.Hour {
		return p, fault.New(fault.Invalid, "invalid --capture quiet=%s,max=%s: out of range",
			p.quiet, p.max).
			WithHint("quiet must be between %s and max, and max at most a day, for example: --capture "+
				"quiet=200ms,max=2s", leastQuiet)
	}
	if every := time.Duration(c.MemoryEveryMS) * time.Millisecond; every != 0 &&
		(every < images.LeastEvery || every > 24*time.Hour) {
		return p, fault.New(fault.Invalid, "invalid --capture-memory every=%s: out of range", every).
			WithHint("use a time between %s and a day, for example: --capture-memory every=5m", images.LeastEvery)
	}
	return p, nil
}

// due returns how long to wait before the changes seen are captured, negative if that is overdue; false if there are
// none. since is when changes were first seen; mapped says that a file may have changed without a trace; last is when
// the last capture started.
func (p pace) due(g layer.Glance, since time.Time, mapped bool, last, now time.Time) (time.Duration, bool) {
	var at time.Time
	switch {
	case g.Changed:
		// The clock may have been set back.
		at = earlier(earlier(g.Newest, now).Add(p.quiet), earlier(since, now).Add(p.max))
	case g.Unsure:
		at = last.Add(p.quiet)
	case mapped:
		at = last.Add(p.max)
	default:
		return 0, false
	}
	return at.Sub(now), true
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// follow captures the changes of the processes of a box, until the box has exited.
func (r *Runner) follow(ctx context.Context, p *place, b Box, pc pace) {
	var clock uint64
	for {
		now, err := b.Active(ctx, clock)
		if err != nil {
			if !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
				r.c.Log.Error("stopped taking automatic snapshots", "sandbox", p.id, "err", err)
			}
			return
		}
		clock = now
		if !r.catchUp(ctx, p, b, pc) {
			return
		}
	}
}

// CaptureLater makes the automatic history of a supervised command look for changes, which it does not do otherwise
// unless a process of the box has run. It reports whether there is such a history.
func (r *Runner) CaptureLater(h Held, rec *meta.Sandbox) bool {
	s := r.with(h)
	b := s.Box()
	if b == nil || s.followed != b || !Supervises(rec) {
		return false
	}
	pc, err := newPace(rec.Run.Capture)
	if err != nil {
		return false
	}
	r.c.Go(func(ctx context.Context) { r.catchUp(ctx, s.at, b, pc) })
	return true
}

// catchUp looks for changes, waits until their capture is due, and captures them. It returns false if the box no
// longer belongs to the sandbox.
func (r *Runner) catchUp(ctx context.Context, p *place, b Box, pc pace) bool {
	for {
		wait, there, rest := r.lookOver(ctx, p, b, pc)
		if !there {
			return false
		}
		if pause := max(wait, rest); pause > 0 {
			select {
			case <-ctx.Done():
				return false
			case <-time.After(pause):
			}
		}
		if wait < 0 {
			return true
		}
	}
}

// lookOver looks once, and captures if that is due. wait is how long to wait for the next look, negative if nothing
// is left to do; rest is the minimum wait, so that looking takes no more than its share.
func (r *Runner) lookOver(
	ctx context.Context, p *place, b Box, pc pace,
) (wait time.Duration, there bool, rest time.Duration) {
	s, err := r.lock(ctx, p, "looking for changes")
	if err != nil {
		return 0, false, 0
	}
	defer s.unlock()
	if s.Box() != b {
		return 0, false, 0
	}
	began := time.Now()
	defer func() { rest = min(time.Since(began)*share, pc.max) }()
	rec, err := r.c.Records.Sandbox(ctx, string(p.id))
	if err != nil {
		return 0, false, 0
	}
	l, err := s.Look(ctx, &rec)
	if err == nil {
		left, some := pc.due(l.Glance, l.Since, l.Mapped, l.Last, time.Now())
		if !some {
			return -1, true, 0
		}
		if left > 0 {
			return left, true, 0
		}
		if left, err = r.CaptureByItself(ctx, s, &rec); left > 0 {
			return left, true, 0
		}
	}
	if err != nil && ctx.Err() == nil {
		// A full disk may get space again, so retry while there are changes.
		r.c.Log.Error("could not capture the changes of a sandbox", "sandbox", rec.Name, "err", err)
		return pc.max, true, 0
	}
	return -1, true, 0
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
