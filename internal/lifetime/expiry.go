//go:build linux

package lifetime

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// Max is the longest time to live of a sandbox, and the longest idle limit. A sandbox that needs to live longer has
// no time to live.
const Max = limit.Life

// SetLife changes when a sandbox expires, after which idle time it is stopped, and its labels.
func (l *Lifetimes) SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error) {
	release, rec, err := l.config.Finder.Acquire(ctx, name, "changing its life")
	if err != nil {
		return wire.Sandbox{}, err
	}
	defer l.WakeExpiry()
	defer l.WakeIdle()
	err = l.setLife(ctx, &rec, req)
	release()
	if err != nil {
		return wire.Sandbox{}, err
	}
	return l.config.Finder.Describe(ctx, &rec), nil
}

// setLife applies a request to rec, and stores the result. The caller holds the lock of the sandbox. Labels are
// recorded in the audit log, since tools decide by them.
func (l *Lifetimes) setLife(ctx context.Context, rec *meta.Sandbox, req wire.LifeRequest) error {
	before, now := rec.Labels, l.config.Now()
	if err := Configure(&rec.Config, req, now); err != nil {
		return err
	}
	store := func(ctx context.Context) error {
		return l.config.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error {
			err := Configure(&r.Config, req, now)
			*rec = *r
			return err
		})
	}
	if maps.Equal(before, rec.Labels) {
		return store(ctx)
	}
	return l.config.Relabel(ctx, rec, before, store)
}

// Configure checks a request that was made at now, and applies it to the configuration of a sandbox.
func Configure(c *meta.Config, req wire.LifeRequest, now time.Time) error {
	for what, ms := range map[string]*int64{"time to live": req.TTLMS,
		"time until an idle sandbox is stopped": req.IdleStopMS} {
		if ms != nil && !limit.InLife(*ms) {
			return fault.New(fault.Invalid, "a %s of %d ms", what, *ms).
				WithHint("give a time between 1 ms and 100 years, or 0 for ever")
		}
	}
	labels, err := label.Change(c.Labels, req.Labels, req.RemoveLabels)
	if err != nil {
		return err
	}
	c.Labels = labels
	if req.IdleStopMS != nil {
		c.IdleStopMS = *req.IdleStopMS
	}
	if req.TTLMS == nil {
		return nil
	}
	c.Expires = nil
	if *req.TTLMS > 0 {
		at := now.UTC().Add(time.Duration(*req.TTLMS) * time.Millisecond).Truncate(time.Millisecond)
		c.Expires = &at
	}
	return nil
}

// ExpireAll expires each sandbox whose time has come, until ctx is canceled. A failure is logged and retried.
func (l *Lifetimes) ExpireAll(ctx context.Context) {
	const again = time.Minute // after a failure, and in case the clock is set
	for {
		wait := again
		recs, err := l.config.DB.Sandboxes(ctx)
		if err != nil && ctx.Err() == nil {
			l.config.Log.Error("could not list the expired sandboxes; will retry", "err", err)
		}
		some := err != nil
		for i := range recs {
			if recs[i].Expires == nil {
				continue
			}
			some = true
			left := recs[i].Expires.Sub(l.config.Now())
			if left > 0 {
				wait = min(wait, left)
				continue
			}
			if err := l.Expire(ctx, recs[i].ID); err != nil && ctx.Err() == nil {
				l.config.Log.Error("a sandbox outlives its time", "sandbox", recs[i].Name, "err", err)
			}
		}
		var timer <-chan time.Time // nil if there is nothing to wait for
		if some {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.expiries:
		case <-timer:
		}
	}
}

// Expire removes a sandbox if it has expired. A sandbox with tags is stopped, rewound to its newest tagged snapshot,
// and keeps only its tagged snapshots; then it no longer expires. Before each step, Expire checks whether the
// lifetime was extended meanwhile, and if so stops.
func (l *Lifetimes) Expire(ctx context.Context, id timeline.SandboxID) error {
	rec, err := l.config.DB.Sandbox(ctx, string(id))
	if err != nil || !l.expired(&rec) {
		return err
	}
	h, err := l.config.DB.History(ctx, id)
	if err != nil {
		return err
	}
	tagged, ok := newestTagged(&h)
	if !ok || rec.Trial != nil { // nothing of a trial is kept
		l.config.Log.Info("a sandbox has expired", "sandbox", rec.Name)
		return l.config.Ender.Remove(ctx, id, l.expired)
	}
	if err := l.config.Ender.Stop(ctx, id, l.expired); err != nil {
		return err
	}
	if rec, err = l.config.DB.Sandbox(ctx, string(id)); err != nil || !l.expired(&rec) {
		return err // the lifetime was extended
	}
	if err := l.config.Ender.Checkout(ctx, id, tagged); err != nil {
		return err
	}
	if err := l.config.Drop(ctx, id, l.untagged); err != nil {
		return err
	}
	return l.config.DB.UpdateSandbox(ctx, id, func(r *meta.Sandbox) error {
		if !l.expired(r) { // the lifetime was extended
			return nil
		}
		r.Notices = append(r.Notices,
			fmt.Sprintf("it expired at %s: its tagged snapshots were kept", r.Expires.Format(time.RFC3339)))
		r.Expires, r.Redo = nil, nil
		return nil
	})
}

// expired reports whether a sandbox has expired.
func (l *Lifetimes) expired(rec *meta.Sandbox) bool {
	return rec.Expires != nil && !rec.Expires.After(l.config.Now())
}

// newestTagged returns the newest snapshot with a tag.
func newestTagged(h *timeline.History) (timeline.SnapshotID, bool) {
	for _, id := range h.NewestFirst() {
		if len(h.TagsOf(id)) > 0 {
			return id, true
		}
	}
	return "", false
}

// untagged chooses the snapshots that an expired sandbox has made, without a tag, and that nothing needs.
func (l *Lifetimes) untagged(
	rec *meta.Sandbox, h *timeline.History, needed upkeep.Needed,
) (doomed []timeline.SnapshotID) {
	if !l.expired(rec) {
		return nil
	}
	for _, snap := range h.NewestFirst() {
		s := h.Snapshots[snap]
		if s.Sandbox == rec.ID && s.Cause != timeline.CauseImport && s.Cause != timeline.CauseFork &&
			snap != h.Head && !needed[snap] && len(h.TagsOf(snap)) == 0 {
			doomed = append(doomed, snap)
		}
	}
	return doomed
}
