//go:build linux

package engine

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

// A sandbox with a supervised command is captured by itself. Whether a process
// has run since the last look is told by the box, for next to nothing: while none
// has, no file can have changed, by whatever means. When one has, the live root
// is looked over without stopping anybody, and captured when what changed has
// been left alone for a while, or has waited for long enough.

const (
	defaultQuiet = 200 * time.Millisecond
	defaultMax   = 2 * time.Second
	leastQuiet   = 10 * time.Millisecond
	// share is the part of the time, one in so many, that looking may take.
	share = 20
)

// pace is when snapshots are taken by themselves.
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
		return p, fault.New(fault.Invalid, "automatic snapshots after %s of quiet, and after %s at the latest",
			p.quiet, p.max).
			WithHint("quiet is at least %s and at most max, and max at most a day: --capture quiet=200ms,max=2s", leastQuiet)
	}
	if every := time.Duration(c.MemoryEveryMS) * time.Millisecond; every != 0 &&
		(every < images.LeastEvery || every > 24*time.Hour) {
		return p, fault.New(fault.Invalid, "memory kept every %s", every).
			WithHint("between %s and a day: --capture-memory every=5m", images.LeastEvery)
	}
	return p, nil
}

// due says how long to wait until what was seen is to be captured: less than
// nothing when it is time, and false when there is nothing. since is when changes
// were first seen; mapped says that a file may have changed without a trace; last
// is when was captured last.
func (p pace) due(g layer.Glance, since time.Time, mapped bool, last, now time.Time) (time.Duration, bool) {
	var at time.Time
	switch {
	case g.Changed:
		// A clock may have been set back.
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

// follow captures what the processes of a box change, until the box has ended.
func (e *Engine) follow(s *entry, b Box, p pace) {
	var clock uint64
	for {
		now, err := b.Active(e.bgCtx, clock)
		if err != nil {
			if !fault.Is(err, fault.Unavailable) && e.bgCtx.Err() == nil {
				e.Logger.Error("nothing is captured by itself any more", "sandbox", s.ID, "err", err)
			}
			return
		}
		clock = now
		if !e.catchUp(e.bgCtx, s, b, p) {
			return
		}
	}
}

// catchUp looks at what has changed, waits until it is due, and captures it; false
// when the box is no longer the sandbox's.
func (e *Engine) catchUp(ctx context.Context, s *entry, b Box, p pace) bool {
	for {
		wait, there, rest := e.lookOver(ctx, s, b, p)
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

// lookOver looks once, and captures if that is due. wait is how long to wait for
// the next look, negative when nothing is left to do; rest is the least to wait,
// so that looking takes no more than its share.
func (e *Engine) lookOver(
	ctx context.Context, sbx *entry, b Box, p pace,
) (wait time.Duration, there bool, rest time.Duration) {
	s, err := e.lock(ctx, sbx, "looking for changes")
	if err != nil {
		return 0, false, 0
	}
	defer s.unlock(e)
	if s.box != b {
		return 0, false, 0
	}
	began := time.Now()
	defer func() { rest = min(time.Since(began)*share, p.max) }()
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if err != nil {
		return 0, false, 0
	}
	g, err := e.glance(ctx, s, &rec)
	if err == nil {
		now := time.Now()
		if g.Changed && s.changed.IsZero() {
			s.changed = earlier(g.Oldest, now)
		}
		left, some := p.due(g, s.changed, s.mapped, s.captured, now)
		if !some {
			return -1, true, 0
		}
		if left > 0 {
			return left, true, 0
		}
		if left, err = e.captureByItself(ctx, s, &rec); left > 0 {
			return left, true, 0
		}
	}
	if err != nil && ctx.Err() == nil {
		// Full disks get room again: it is tried as long as there are changes.
		e.Logger.Error("what changed is not in the history yet", "sandbox", rec.Name, "err", err)
		return p.max, true, 0
	}
	return -1, true, 0
}

// captureByItself captures what the processes changed, or returns how long to wait for the
// budget of automatic snapshots.
func (e *Engine) captureByItself(ctx context.Context, s *held, rec *meta.Sandbox) (wait time.Duration, err error) {
	left, err := e.budgets.Of(ctx, s.ID)
	if err != nil {
		return 0, err
	}
	if wait = left.Wait(e.Now(), audit.ClassCaptures); wait > 0 {
		return wait, nil
	}
	t, err := e.capture(ctx, s, rec, note{cause: timeline.CauseAuto, aside: true})
	if t.changed {
		left.Spent(e.Now(), audit.ClassCaptures, 1)
	}
	return 0, err
}

// glance says whether there is something to capture.
func (e *Engine) glance(ctx context.Context, s *held, rec *meta.Sandbox) (layer.Glance, error) {
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return layer.Glance{}, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return layer.Glance{}, err
	}
	in := layer.CaptureInput{Parts: parts, Index: e.presentIndex(s, rec), Plain: drv.Plain(), TimesAside: true}
	e.shape.RLock()
	defer e.shape.RUnlock()
	in.Head = func() *layer.View {
		v, err := e.viewOf(ctx, rec, rec.Head, parts)
		if err != nil {
			return nil
		}
		return v
	}
	if in.Index == nil {
		in.Index, _ = e.lostIndex(drv, rec)
	}
	return e.Layers.Glance(ctx, in)
}
