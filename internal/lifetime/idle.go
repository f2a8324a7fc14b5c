//go:build linux

package lifetime

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// The number of checks of a sandbox during its idle limit, and the bounds of the interval between them.
	idleLooks    = 8
	idleLookMin  = 100 * time.Millisecond
	idleLookMost = 30 * time.Second
	// idleShare is the share of a core up to which processes count as idle.
	idleShare = 0.01
)

// idleLook is the state of a sandbox's processes at one check.
type idleLook struct {
	box   Box
	at    time.Time
	since time.Time // the sandbox has not been busy since
	cpuMS int64
	who   uint64 // digest of the set of processes
}

// StopAllIdle stops the processes of sandboxes that have been idle for longer than their limit, until ctx is
// canceled. A failure is logged and retried.
func (l *Lifetimes) StopAllIdle(ctx context.Context) {
	seed := maphash.MakeSeed()
	looks := map[timeline.SandboxID]idleLook{}
	for {
		var timer <-chan time.Time // nil if there is nothing to check
		next := map[timeline.SandboxID]idleLook{}
		wait := idleLookMost
		for _, id := range l.config.Finder.Known() {
			limit, err := l.idleLimit(ctx, id)
			if err == nil && limit > 0 {
				wait = min(wait, max(limit/idleLooks, idleLookMin))
				timer = time.After(wait)
				err = l.tendIdle(ctx, id, limit, looks[id], next, seed)
			}
			if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Unavailable) {
				l.config.Log.Error("whether a sandbox is idle is not known", "sandbox", id, "err", err)
			}
		}
		looks = next
		select {
		case <-ctx.Done():
			return
		case <-l.idles:
		case <-timer:
		}
	}
}

// idleLimit returns the idle time after which a sandbox is stopped; 0 if it has no limit, or is not running.
func (l *Lifetimes) idleLimit(ctx context.Context, id timeline.SandboxID) (time.Duration, error) {
	rec, err := l.config.DB.Sandbox(ctx, string(id))
	if fault.Is(err, fault.NotFound) || err == nil && rec.IdleStopMS == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if b, ok := l.config.Finder.Box(id, "looking whether it runs"); ok && b == nil {
		return 0, nil
	}
	return time.Duration(rec.IdleStopMS) * time.Millisecond, nil
}

// tendIdle checks one sandbox, and stops it if it is idle. Otherwise it adds the check to next.
func (l *Lifetimes) tendIdle(
	ctx context.Context, id timeline.SandboxID, limit time.Duration, before idleLook,
	next map[timeline.SandboxID]idleLook, seed maphash.Seed,
) error {
	b, ok := l.config.Finder.Box(id, "looking whether it is idle")
	if !ok || b == nil {
		return nil // a sandbox whose lock a caller holds is not idle
	}
	look, err := l.lookIdle(ctx, id, b, before, seed)
	if err != nil {
		return err
	}
	next[id] = look
	if look.at.Sub(look.since) < limit {
		return nil
	}
	return l.stopOne(ctx, id, b, look.since, limit)
}

// lookIdle checks whether a sandbox has been busy since the last check: it was used by a client, has other processes,
// or its processes use CPU time.
func (l *Lifetimes) lookIdle(
	ctx context.Context, id timeline.SandboxID, b Box, before idleLook, seed maphash.Seed,
) (idleLook, error) {
	res, err := b.Processes(ctx)
	if err != nil {
		return before, err
	}
	now := idleLook{box: b, at: l.config.Now(), since: before.since}
	var who maphash.Hash
	who.SetSeed(seed)
	for _, p := range res.Processes {
		now.cpuMS += p.CPUMS
		fmt.Fprintln(&who, p.PID, p.Start)
	}
	now.who = who.Sum64()
	using, last := l.used(id)
	if using || res.More > 0 || busySince(before, now) {
		now.since = now.at
	} else if last.After(now.since) {
		now.since = last
	}
	return now, nil
}

// busySince compares two checks of the same sandbox.
func busySince(before, now idleLook) bool {
	took := time.Duration(now.cpuMS-before.cpuMS) * time.Millisecond
	return before.box != now.box || before.who != now.who || float64(took) > idleShare*float64(now.at.Sub(before.at))
}

// stopOne captures and stops a sandbox whose box is b, unless a client has used it since it was found idle.
func (l *Lifetimes) stopOne(
	ctx context.Context, id timeline.SandboxID, b Box, since time.Time, limit time.Duration,
) error {
	var name string
	unused := func(rec *meta.Sandbox) bool {
		name = rec.Name
		using, last := l.used(id)
		return rec.IdleStopMS != 0 && !using && !last.After(since)
	}
	stopped, err := l.config.Ender.StopIdle(ctx, id, b, fmt.Sprintf("stopped after %s of inactivity", limit), unused)
	if stopped {
		l.config.Log.Info("an idle sandbox was stopped", "sandbox", name)
	}
	return err
}
