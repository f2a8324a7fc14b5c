//go:build linux

package engine

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Automatic snapshots thin out by themselves: dense where they are young, sparse
// where they are old. Nothing else ever goes unasked. The work is done in the
// background and holds locks for one transaction at a time: layers are merged and
// sealed without them, and when something has changed meanwhile the merged layer
// is thrown away.

const (
	// thinEvery is how many new automatic snapshots make it worth while to look.
	thinEvery = 100
	// maxRun is how many neighbours are dropped at a time, which is what a
	// transaction takes.
	maxRun = 32
	// patience is how often, every patienceStep, the locks are tried for.
	patience     = 50
	patienceStep = 20 * time.Millisecond
)

// errBusy says that something else is being done for long.
var errBusy = errors.New("layers are in use")

// mayBeThick counts a new snapshot. The caller holds the sandbox's lock.
func (e *Engine) mayBeThick(s *held, snap timeline.Snapshot) {
	if snap.Cause != timeline.CauseAuto {
		return
	}
	if s.autos++; s.autos < thinEvery {
		return
	}
	s.autos = 0
	e.mu.Lock()
	e.thick[s.ID] = true
	e.mu.Unlock()
	e.wake()
}

// thinAll thins what mayBeThick noted. What cannot be done now is tried again next
// time.
func (e *Engine) thinAll(ctx context.Context) error {
	e.mu.Lock()
	ids := slices.Collect(maps.Keys(e.thick))
	e.mu.Unlock()
	var errs []error
	for _, id := range ids {
		switch err := e.thin(ctx, id); {
		case errors.Is(err, errBusy):
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		e.mu.Lock()
		delete(e.thick, id)
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

// thin drops the automatic snapshots of a sandbox that its rules do not keep.
func (e *Engine) thin(ctx context.Context, id timeline.SandboxID) error {
	e.thinning.Lock()
	defer e.thinning.Unlock()
	rec, h, err := e.find(ctx, string(id))
	if fault.Is(err, fault.NotFound) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	held, err := e.DB.Held(ctx, id)
	if err != nil {
		return err
	}
	runs := timeline.Runs(h, thinPlan(&rec, h, held, e.Now()), maxRun)
	for _, run := range runs {
		if err := e.dropRun(ctx, &rec, h, run); err != nil {
			return fault.Wrap(err, "thin out sandbox %s", rec.Name)
		}
	}
	if len(runs) > 0 {
		e.mayBeDeep(rec.Head)
	}
	return nil
}

// thinPlan is what goes now.
func thinPlan(
	rec *meta.Sandbox, h *timeline.History, held map[timeline.SnapshotID]bool, now time.Time,
) []timeline.SnapshotID {
	recent, all := rec.KeepRecent, time.Duration(rec.KeepForMS)*time.Millisecond
	if recent == 0 {
		recent = wire.DefaultKeepRecent
	}
	if all == 0 {
		all = wire.DefaultKeepForMS * time.Millisecond
	}
	for _, id := range h.Newest(recent) {
		held[id] = true
	}
	return timeline.Thin(h, timeline.AutoRetention(all), now,
		func(id timeline.SnapshotID) bool { return held[id] },
		func(s timeline.Snapshot) bool { return s.Cause == timeline.CauseAuto })
}

// dropRun drops neighbours, newest first, by one merged layer; where their routes
// are not those of neighbours, one by one.
func (e *Engine) dropRun(ctx context.Context, rec *meta.Sandbox, h *timeline.History, run []timeline.SnapshotID) error {
	c, err := e.prepareCut(ctx, run)
	if errors.Is(err, errUnlike) {
		for _, id := range run {
			if err := e.dropRun(ctx, rec, h, []timeline.SnapshotID{id}); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer c.made()
	d := e.debtOf(ctx, rec)
	d.Snapshots, d.Reason = run, "retention"
	pay, err := e.owe(ctx, d)
	if err != nil {
		return err
	}
	unused, err := e.commitCut(ctx, rec.ID, c)
	if perr := pay(err); err == nil && perr != nil {
		e.Logger.Error("not in the ledger yet", "sandbox", rec.Name, "err", perr)
	}
	if err != nil {
		ids := make([]timeline.LayerID, len(c.sealed))
		for i, l := range c.sealed {
			ids[i] = l.ID
		}
		e.removeLayers(ctx, ids)
		if fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) {
			return nil // it has come into use, or is gone: the next look sees
		}
		return err
	}
	e.removeLayers(ctx, unused)
	for _, id := range run {
		e.Feed.Emit(events.Dropped(rec, h.Snapshots[id], "retention"))
	}
	return nil
}

// cut is a run that is ready to be taken out.
type cutting struct {
	run    []timeline.SnapshotID // newest first
	seen   []meta.Cut            // what it was made from
	led    [][]timeline.Route
	sealed []meta.Layer
	made   func()
}

// errUnlike says that a run is no plain chain of layers.
var errUnlike = errors.New("the routes of the run are not those of neighbours")

// prepareCut makes the layers that take the place of a run's. Nothing is recorded.
func (e *Engine) prepareCut(ctx context.Context, run []timeline.SnapshotID) (c cutting, err error) {
	c = cutting{run: run, led: make([][]timeline.Route, len(run)), made: func() {}}
	e.shape.RLock()
	defer func() {
		if err != nil {
			c.made()
		}
	}()
	if c.seen, err = e.cuts(ctx, run); err != nil {
		e.shape.RUnlock()
		return c, err
	}
	if len(run) > 1 && !chained(run, c.seen) {
		e.shape.RUnlock()
		return c, errUnlike
	}
	var merged []timeline.LayerID
	for _, r := range c.seen[0].Above {
		layers := []timeline.LayerID{r.Layer}
		for _, s := range c.seen {
			if s.Own != nil {
				layers = append(layers, s.Own.Layer)
			}
		}
		to := r.Layer
		if len(layers) > 1 {
			var made func()
			if to, made, err = e.newLayer(); err == nil {
				before := c.made
				c.made = func() { before(); made() }
				if err = e.Layers.Merge(ctx, to, layers); err == nil {
					merged = append(merged, to)
				}
			}
			if err != nil {
				break
			}
		}
		for i, s := range c.seen {
			c.led[i] = append(c.led[i], timeline.Route{Top: r.Top, Below: s.Below, Layer: to})
		}
	}
	e.shape.RUnlock()
	// What they take the place of may be sealed, and is gone afterwards.
	for _, id := range merged {
		if err != nil {
			break
		}
		got, serr := e.Layers.Seal(ctx, id)
		c.sealed, err = append(c.sealed, meta.Layer{ID: id, Digest: got.Digest, DiffID: got.DiffID, Size: got.Size}), serr
	}
	if err != nil {
		e.removeLayers(ctx, merged)
		return c, fault.Wrap(err, "merge snapshot %s with its neighbours", run[0])
	}
	return c, nil
}

// cuts reads how each of a run is tied to its neighbours.
func (e *Engine) cuts(ctx context.Context, run []timeline.SnapshotID) ([]meta.Cut, error) {
	out := make([]meta.Cut, len(run))
	for i, id := range run {
		var err error
		if out[i], err = e.DB.Cut(ctx, id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// chained reports whether one route leads from above through each of a run to the
// next.
func chained(run []timeline.SnapshotID, cuts []meta.Cut) bool {
	for i, c := range cuts {
		switch {
		case len(c.Above) != 1:
			return false
		case i > 0 && (c.Above[0].Top != run[i-1] || cuts[i-1].Own == nil):
			return false
		}
	}
	return true
}

// commitCut records that a run is gone, if everything still is as it was when that
// was prepared; else it is a Conflict. It never makes anybody wait for longer than
// a transaction.
func (e *Engine) commitCut(ctx context.Context, id timeline.SandboxID, c cutting) ([]timeline.LayerID, error) {
	s := e.entry(id)
	for range patience {
		if h := e.tryLock(s, "dropping old automatic snapshots"); h != nil {
			if e.shape.TryLock() {
				defer h.unlock(e)
				defer e.shape.Unlock()
				return e.commitLocked(ctx, id, c)
			}
			h.unlock(e)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(patienceStep):
		}
	}
	return nil, errBusy
}

func (e *Engine) commitLocked(ctx context.Context, id timeline.SandboxID, c cutting) ([]timeline.LayerID, error) {
	if _, err := e.DB.Sandbox(ctx, string(id)); err != nil {
		return nil, err
	}
	now, err := e.cuts(ctx, c.run)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(now, c.seen) {
		return nil, fault.New(fault.Conflict, "the neighbours of snapshot %s have changed", c.run[0])
	}
	unused, err := e.DB.DropRun(ctx, c.run, c.led, c.sealed...)
	if err != nil {
		return nil, err
	}
	e.rerouted()
	e.mu.Lock()
	clear(e.shallow)
	e.mu.Unlock()
	return unused, nil
}
