//go:build linux

package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// maxLife is the longest time that a sandbox can be given: what lives for longer
// lives for ever.
const maxLife = 100 * 365 * 24 * time.Hour

// SetLife changes how long a sandbox lives, and when its processes are stopped.
func (e *Engine) SetLife(ctx context.Context, name string, req wire.LifeRequest) (wire.Sandbox, error) {
	s, rec, err := e.acquire(ctx, name, "changing its life")
	if err != nil {
		return wire.Sandbox{}, err
	}
	defer e.lifeChanged()
	defer e.idleChanged()
	err = e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
		err := e.setLife(&r.Config, req)
		rec = *r
		return err
	})
	s.unlock(e)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return e.wire(ctx, &rec), nil
}

// setLife puts what is asked for into a record.
func (e *Engine) setLife(c *meta.Config, req wire.LifeRequest) error {
	for what, ms := range map[string]*int64{"time to live": req.TTLMS,
		"time until an idle sandbox is stopped": req.IdleStopMS} {
		if ms != nil && (*ms < 0 || *ms > maxLife.Milliseconds()) {
			return fault.New(fault.Invalid, "a %s of %d ms", what, *ms).
				WithHint("give a time between 1 ms and 100 years, or 0 for ever")
		}
	}
	if req.IdleStopMS != nil {
		c.IdleStopMS = *req.IdleStopMS
	}
	if req.TTLMS == nil {
		return nil
	}
	c.Expires = nil
	if *req.TTLMS > 0 {
		at := e.Now().UTC().Add(time.Duration(*req.TTLMS) * time.Millisecond).Truncate(time.Millisecond)
		c.Expires = &at
	}
	return nil
}

// lifeChanged tells expireAll to look again.
func (e *Engine) lifeChanged() {
	select {
	case e.lives <- struct{}{}:
	default:
	}
}

// expireAll ends each sandbox whose time has come, until ctx ends.
func (e *Engine) expireAll(ctx context.Context) {
	const again = time.Minute // after a failure, and for clocks that are set
	for {
		wait := again
		recs, err := e.DB.Sandboxes(ctx)
		if err != nil && ctx.Err() == nil {
			e.Logger.Error("what has expired is not known", "err", err)
		}
		some := err != nil
		for i := range recs {
			if recs[i].Expires == nil {
				continue
			}
			some = true
			left := recs[i].Expires.Sub(e.Now())
			if left > 0 {
				wait = min(wait, left)
				continue
			}
			if err := e.expire(ctx, recs[i].ID); err != nil && ctx.Err() == nil {
				e.Logger.Error("a sandbox outlives its time", "sandbox", recs[i].Name, "err", err)
			}
		}
		var timer <-chan time.Time // nil without anything to wait for
		if some {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.lives:
		case <-timer:
		}
	}
}

// expire removes a sandbox whose time has come. One with tags is stopped, goes to
// the newest that is tagged, and keeps what its tags name.
func (e *Engine) expire(ctx context.Context, id timeline.SandboxID) error {
	rec, h, err := e.find(ctx, string(id))
	if err != nil || !expired(&rec, e.Now()) {
		return err
	}
	tagged, ok := newestTagged(h)
	if !ok {
		e.Logger.Info("a sandbox has expired", "sandbox", rec.Name)
		// It may be given more while others work on it.
		return e.removeOne(ctx, string(id), true, func(r *meta.Sandbox) bool { return expired(r, e.Now()) })
	}
	if _, err := e.stopIf(ctx, string(id), func(r *meta.Sandbox) bool { return expired(r, e.Now()) }); err != nil {
		return err
	}
	if rec, err = e.DB.Sandbox(ctx, string(id)); err != nil || !expired(&rec, e.Now()) {
		return err // it was given more time
	}
	if _, err := e.Checkout(ctx, string(id), wire.CheckoutRequest{Node: string(tagged)}); err != nil {
		return err
	}
	if err := e.dropUntagged(ctx, id); err != nil {
		return err
	}
	return e.DB.UpdateSandbox(ctx, id, func(r *meta.Sandbox) error {
		if !expired(r, e.Now()) { // it was given more
			return nil
		}
		r.Notices = append(r.Notices,
			fmt.Sprintf("it expired at %s: what its tags name was kept", r.Expires.Format(time.RFC3339)))
		r.Expires, r.Redo = nil, nil
		return nil
	})
}

// expired reports whether the time of a sandbox has come.
func expired(rec *meta.Sandbox, now time.Time) bool {
	return rec.Expires != nil && !rec.Expires.After(now)
}

// newestTagged is the newest snapshot with a tag.
func newestTagged(h *timeline.History) (timeline.SnapshotID, bool) {
	for _, id := range h.NewestFirst() {
		if len(h.TagsOf(id)) > 0 {
			return id, true
		}
	}
	return "", false
}

// dropUntagged drops what a sandbox has made and nobody has named or needs.
func (e *Engine) dropUntagged(ctx context.Context, id timeline.SandboxID) error {
	choose := func(rec *meta.Sandbox, h *timeline.History, needed upkeep.Needed) (doomed []timeline.SnapshotID) {
		if !expired(rec, e.Now()) {
			return nil
		}
		for _, snap := range h.NewestFirst() {
			s := h.Snapshots[snap]
			if s.Sandbox == id && s.Cause != timeline.CauseImport && s.Cause != timeline.CauseFork &&
				snap != h.Head && !needed[snap] && len(h.TagsOf(snap)) == 0 {
				doomed = append(doomed, snap)
			}
		}
		return doomed
	}
	return e.Upkeep.Drop(ctx, id, choose)
}
