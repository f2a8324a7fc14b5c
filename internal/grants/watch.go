//go:build linux

package grants

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// every is how often Watch asks whether the broker is still the same process, while there are registrations.
const every = 2 * time.Second

// whyExpired is the reason of a grant that has expired.
const whyExpired = "its time is over"

// due reports whether a live grant has expired.
func due(row meta.Grant, now time.Time) bool {
	return row.State == wire.GrantLive && !row.Until.IsZero() && !row.Until.After(now)
}

// Watch expires grants, and repeats the registrations with a broker that has started since, until ctx ends. It starts
// with those of boxes that an earlier daemon started.
func (c *Grants) Watch(ctx context.Context) {
	w := watch{c: c}
	for first := true; ; first = false {
		wait, err := w.round(ctx, first)
		if err != nil && ctx.Err() == nil {
			c.config.Log.Error("could not look after grants; will retry", "err", err)
		}
		var timer <-chan time.Time // nil if there is nothing to wait for
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer:
		}
	}
}

// watch is the state of Watch.
type watch struct {
	c    *Grants
	boot string // of the broker that has the registrations
}

// round looks once. It returns when to look again; 0 is not before Grants.wake.
func (w *watch) round(ctx context.Context, first bool) (wait time.Duration, err error) {
	const again = time.Minute // in case the clock is set
	rows, err := w.c.config.Store.GrantsIn(ctx, wire.GrantLive)
	if err != nil {
		return again, err
	}
	if len(rows) == 0 && len(w.c.ids(nil)) == 0 {
		return 0, nil
	}
	now := w.c.config.Now()
	seen := map[timeline.SandboxID]bool{}
	for _, row := range rows {
		if first && !seen[row.Sandbox] {
			w.c.note(row.Sandbox, false)
		}
		seen[row.Sandbox] = true
		if due(row, now) {
			err = w.renew(ctx, row.Sandbox)
		} else if !row.Until.IsZero() && (wait == 0 || row.Until.Sub(now) < wait) {
			wait = min(row.Until.Sub(now), again)
		}
	}
	if err != nil {
		wait = every
	}
	if len(w.c.ids(nil)) == 0 {
		return wait, err
	}
	if wait == 0 || wait > every {
		wait = every
	}
	asking, cancel := context.WithTimeout(ctx, brokerPatience)
	status, unavailable := w.c.config.Broker.Status(asking)
	cancel()
	if unavailable != nil {
		return wait, err
	}
	ids := w.c.ids(func(done bool) bool { return !done || status.Boot != w.boot })
	for _, id := range ids {
		if e := w.renew(ctx, id); e != nil {
			w.c.config.Log.Warn("could not renew the grants of a sandbox; will retry", "sandbox", id, "err", e)
			w.c.mark(id)
		}
	}
	w.boot = status.Boot
	return wait, err
}

// ids returns the sandboxes that should have a registration, and for which is holds; nil is all.
func (c *Grants) ids(is func(done bool) bool) (ids []timeline.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, done := range c.registered {
		if is == nil || is(done) {
			ids = append(ids, id)
		}
	}
	return ids
}

// mark notes that a registration must be repeated at the next round.
func (c *Grants) mark(id timeline.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.registered[id]; ok {
		c.registered[id] = false
	}
}

// renew expires the grants of a sandbox that are due, and puts the others in force if it has a box.
func (w *watch) renew(ctx context.Context, id timeline.SandboxID) error {
	s, rec, err := w.c.config.Sandboxes.Acquire(ctx, string(id), "renewing its grants")
	if fault.Is(err, fault.NotFound) {
		w.c.forget(id)
		return nil
	}
	if err != nil {
		return err
	}
	defer s.Unlock()
	rows, err := w.c.rows(ctx, id)
	if err == nil {
		rows, err = w.c.expired(ctx, s, &rec, rows)
	}
	if err != nil {
		return err
	}
	if s.Box() == nil || able(&rec) != nil {
		w.c.Withdraw(ctx, id)
		return nil
	}
	broker, box := w.c.enforce(ctx, s, &rec, rows)
	if broker != nil {
		return broker
	}
	if box == nil {
		w.c.done(id)
	}
	return box
}

// done notes that a sandbox has a registration, without another look of Watch.
func (c *Grants) done(id timeline.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registered[id] = true
}

// expired ends the grants of rows that are due, and returns rows.
func (c *Grants) expired(ctx context.Context, s Held, rec *meta.Sandbox, rows []meta.Grant) ([]meta.Grant, error) {
	for _, row := range rows {
		if !due(row, c.config.Now()) {
			continue
		}
		if err := c.finish(ctx, s, rec, rows, row.Name, wire.GrantExpired, whyExpired); err != nil {
			return rows, err
		}
	}
	return rows, nil
}
