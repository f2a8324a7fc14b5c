//go:build linux

package engine

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// A sandbox is looked at so many times in the time after which it is idle, but
	// within these limits.
	idleLooks    = 8
	idleLookMin  = 100 * time.Millisecond
	idleLookMost = 30 * time.Second
	// idleShare is how much of a core processes may take that count as idle.
	idleShare = 0.01
)

// usage is who uses a sandbox, and when somebody last did.
type usage struct {
	now  int
	last time.Time
}

// use notes that somebody uses a sandbox, until done is called.
func (e *Engine) use(id timeline.SandboxID) (done func()) {
	add := func(n int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		u, known := e.uses[id]
		if !known && n < 0 {
			return // it was deleted meanwhile
		}
		u.now, u.last = u.now+n, e.Now()
		e.uses[id] = u
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

// used reports whether somebody uses a sandbox, or when somebody last did.
func (e *Engine) used(id timeline.SandboxID) (now bool, last time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := e.uses[id]
	return u.now > 0, u.last
}

// idleLook is what was seen of a sandbox's processes.
type idleLook struct {
	box   Box
	at    time.Time
	since time.Time // it has not been seen busy since
	cpuMS int64
	who   uint64 // digest of which processes there are
}

// stopIdle stops the processes of sandboxes that have been idle for as long as
// they were given, until ctx ends.
func (e *Engine) stopIdle(ctx context.Context) {
	seed := maphash.MakeSeed()
	looks := map[timeline.SandboxID]idleLook{}
	for {
		var timer <-chan time.Time // nil with nothing to look at
		next := map[timeline.SandboxID]idleLook{}
		wait := idleLookMost
		for _, s := range e.known() {
			limit, err := e.idleLimit(ctx, s)
			if err == nil && limit > 0 {
				wait = min(wait, max(limit/idleLooks, idleLookMin))
				timer = time.After(wait)
				err = e.tendIdle(ctx, s, limit, looks[s.ID], next, seed)
			}
			if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Unavailable) {
				e.Logger.Error("whether a sandbox is idle is not known", "sandbox", s.ID, "err", err)
			}
		}
		looks = next
		select {
		case <-ctx.Done():
			return
		case <-e.idles:
		case <-timer:
		}
	}
}

// idleLimit is the time after which a sandbox is to be stopped; 0 when it is not, or
// does not run.
func (e *Engine) idleLimit(ctx context.Context, s *entry) (time.Duration, error) {
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if fault.Is(err, fault.NotFound) || err == nil && rec.IdleStopMS == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	limit := time.Duration(rec.IdleStopMS) * time.Millisecond
	if h := e.tryLock(s, "looking whether it runs"); h != nil {
		if e.liveBox(h) == nil {
			limit = 0
		}
		h.unlock(e)
	}
	return limit, nil
}

// tendIdle looks at one sandbox, and stops it when it is idle. A look that leaves it
// running is in next.
func (e *Engine) tendIdle(
	ctx context.Context, s *entry, limit time.Duration, before idleLook, next map[timeline.SandboxID]idleLook,
	seed maphash.Seed,
) error {
	h := e.tryLock(s, "looking whether it is idle")
	if h == nil {
		return nil // it is not
	}
	b := e.liveBox(h)
	h.unlock(e)
	if b == nil {
		return nil
	}
	look, err := e.lookIdle(ctx, s.ID, b, before, seed)
	if err != nil {
		return err
	}
	next[s.ID] = look
	if look.at.Sub(look.since) < limit {
		return nil
	}
	return e.stopOneIdle(ctx, s, b, look.since, limit)
}

// lookIdle looks whether a sandbox has been busy since the look before: used by
// somebody, with other processes, or with processes that take time.
func (e *Engine) lookIdle(
	ctx context.Context, id timeline.SandboxID, b Box, before idleLook, seed maphash.Seed,
) (idleLook, error) {
	res, err := b.Processes(ctx)
	if err != nil {
		return before, err
	}
	now := idleLook{box: b, at: e.Now(), since: before.since}
	var who maphash.Hash
	who.SetSeed(seed)
	for _, p := range res.Processes {
		now.cpuMS += p.CPUMS
		fmt.Fprintln(&who, p.PID, p.Start)
	}
	now.who = who.Sum64()
	using, last := e.used(id)
	if using || res.More > 0 || busySince(before, now) {
		now.since = now.at
	} else if last.After(now.since) {
		now.since = last
	}
	return now, nil
}

// busySince compares two looks at the same sandbox.
func busySince(before, now idleLook) bool {
	took := time.Duration(now.cpuMS-before.cpuMS) * time.Millisecond
	return before.box != now.box || before.who != now.who || float64(took) > idleShare*float64(now.at.Sub(before.at))
}

// stopOneIdle captures, and stops what runs, unless somebody has used the sandbox
// since it was found idle.
func (e *Engine) stopOneIdle(ctx context.Context, sbx *entry, b Box, since time.Time, limit time.Duration) error {
	s, err := e.lock(ctx, sbx, "stopping it, being idle")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if err != nil || rec.IdleStopMS == 0 || s.box != b {
		return err
	}
	if using, last := e.used(s.ID); using || last.After(since) {
		return nil
	}
	why := note{cause: timeline.CauseAuto, message: fmt.Sprintf("stopped after %s without use", limit)}
	if _, err := e.capture(ctx, s, &rec, why); err != nil {
		return err
	}
	if s.run != nil {
		s.run.stopped = true
	}
	if err := e.stopBox(ctx, s, stopGrace); err != nil {
		return err
	}
	e.Logger.Info("an idle sandbox was stopped", "sandbox", rec.Name)
	_, err = e.capture(ctx, s, &rec, why)
	return err
}

// idleChanged tells stopIdle that there may be something to look at.
func (e *Engine) idleChanged() {
	select {
	case e.idles <- struct{}{}:
	default:
	}
}
