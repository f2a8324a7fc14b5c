//go:build linux

package command

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	defaultQuiet = 200 * time.Millisecond
	defaultMax   = 2 * time.Second
	leastQuiet   = 10 * time.Millisecond
	// share limits the time spent on looking to one part in this many.
	share = 20
	// long is how long a command that is not supervised runs before it is captured, so that most commands have one
	// snapshot, at their end, and cost nothing more.
	long = 10 * time.Second
	// mostRest limits the rest after a look for a command whose client gave no times: it is not paused again and again
	// for captures that take long, such as those of a large file that grows.
	mostRest = time.Minute
	// blindly is the interval between looks for changes while it is unknown whether a process has run.
	blindly = 10 * time.Second
)

// pace says when automatic snapshots are taken.
type pace struct{ quiet, max time.Duration }

func newPace(c wire.Capture) (pace, error) {
	for _, ms := range []int64{c.QuietMS, c.MaxMS, c.MemoryEveryMS} {
		if ms > 0 && !limit.InLife(ms) {
			return pace{}, fault.New(fault.Invalid, "invalid --capture: %d ms; the limit is a day", ms).
				WithHint("use shorter times, for example: --capture quiet=200ms,max=2s")
		}
	}
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

// checkCapture refuses a request for automatic snapshots of a command that is not supervised. name is the sandbox.
func checkCapture(c wire.Capture, name string) error {
	if c.MemoryEveryMS != 0 || c.MemoryOnMark {
		return fault.New(fault.Invalid, "only a supervised command has automatic snapshots with memory").
			WithHint("start it with: coppice run --in %s --capture-memory every=5m -- CMD", name)
	}
	_, err := newPace(c)
	return err
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

// terms say when a sandbox is captured because one command runs in it. The zero terms never ask for it.
type terms struct {
	pace
	from time.Time     // not before this time
	rest time.Duration // the maximum rest after a look
}

// newTerms returns the terms of a command that was started at a time. A supervised one is captured from its start on.
func newTerms(c wire.Capture, supervised bool, started time.Time) terms {
	p, err := newPace(c)
	if c.Off || err != nil { // invalid times are refused before the command starts
		return terms{}
	}
	t := terms{pace: p, from: started, rest: p.max}
	switch {
	case supervised:
	case c.QuietMS == 0 && c.MaxMS == 0:
		t.from, t.rest = started.Add(long), mostRest
	default:
		t.from = started.Add(min(long, p.max))
	}
	return t
}

// none reports whether the terms never ask for a capture.
func (t terms) none() bool { return t.max == 0 }

// hurries reports whether a follower that waits until a time, and rests until another, must look before that because
// of these terms.
func (t terms) hurries(until, rested time.Time) bool {
	return t.from.Before(until) || t.from.Add(t.rest).Before(rested)
}

// and returns the shortest times of two terms.
func (t terms) and(u terms) terms {
	if t.none() {
		return u
	}
	t.quiet, t.max, t.rest = min(t.quiet, u.quiet), min(t.max, u.max), min(t.rest, u.rest)
	return t
}

// schedule returns the terms on which a sandbox is captured now: the shortest times of all commands that have run for
// long enough, or the zero terms without such a command. next is when another command will shorten them, or the zero
// time if no command will.
func schedule(all []terms, now time.Time) (current terms, next time.Time) {
	for _, t := range all {
		if !t.none() && !t.from.After(now) {
			current = current.and(t)
		}
	}
	for _, t := range all {
		if t.from.After(now) && current.and(t) != current && (next.IsZero() || t.from.Before(next)) {
			next = t.from
		}
	}
	return current, next
}

// nextLook returns when a follower looks again on the terms of schedule; zero: when a process has run. left is how long
// the changes that it has found may wait, negative if there are none: then it does not matter when other terms begin.
func nextLook(current terms, next time.Time, left time.Duration, now time.Time) time.Time {
	at := now.Add(left)
	switch {
	case current.none():
		return next
	case left < 0:
		return time.Time{}
	case !next.IsZero() && next.Before(at):
		return next
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
