//go:build linux

package upkeep

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Only automatic snapshots are removed without a request: many recent ones are kept, and few old ones. This happens
// in the background, which holds locks for one transaction at a time. Layers are merged and finalized without the
// locks; if the history has changed meanwhile, the merged layer is removed.

const (
	// ThinEvery is the number of new automatic snapshots after which a history is checked.
	ThinEvery = 100
	// maxRun is how many adjacent snapshots one transaction removes at most.
	maxRun = 32
	// retention is the recorded reason for removing snapshots that rules do not keep.
	retention = "retention"
	// patience is how often the locks are tried, every patienceStep.
	patience     = 50
	patienceStep = 20 * time.Millisecond
)

// ErrBusy is the error of a removal of snapshots for which the layers or the sandbox were in use for too long.
var ErrBusy = errors.New("layers are in use")

// MayBeThick counts a new snapshot, and makes Work thin its sandbox every ThinEvery. It does not wait, and
// the caller may hold any lock.
func (u *Upkeep) MayBeThick(snap timeline.Snapshot) {
	if snap.Cause == timeline.CauseAuto && u.isThick(snap.Sandbox) {
		u.Wake()
	}
}

// isThick counts an automatic snapshot, and queues the sandbox if it is due.
func (u *Upkeep) isThick(id timeline.SandboxID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, counted := u.autos[id]
	if n++; counted && n < ThinEvery { // an earlier daemon may not have thinned the history
		u.autos[id] = n
		return false
	}
	u.autos[id] = 0
	u.thick[id] = true
	return true
}

// thinQueued thins the sandboxes that MayBeThick has queued. Sandboxes for which this fails stay queued.
func (u *Upkeep) thinQueued(ctx context.Context) error {
	var errs []error
	for _, id := range queued(u, u.thick) {
		err := u.Thin(ctx, id)
		if err != nil {
			queue(u, u.thick, id)
		}
		if !errors.Is(err, ErrBusy) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Thin removes the automatic snapshots of a sandbox that its rules do not keep. It does nothing if the sandbox was
// removed. For ErrBusy see Drop.
func (u *Upkeep) Thin(ctx context.Context, id timeline.SandboxID) error {
	u.thinning.Lock()
	defer u.thinning.Unlock()
	rec, h, err := u.find(ctx, string(id))
	if fault.Is(err, fault.NotFound) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	err = u.drop(ctx, &rec, h, func(rec *meta.Sandbox, h *timeline.History, needed Needed) []timeline.SnapshotID {
		return thinPlan(rec, h, needed, u.config.Now())
	})
	return fault.Wrap(err, "thin out sandbox %s", rec.Name)
}

// Needed is the set of the snapshots of a history that a tag, a fork, or a live root needs.
type Needed = map[timeline.SnapshotID]bool

// Choice chooses snapshots of a history to remove; none of needed may be among them.
type Choice func(rec *meta.Sandbox, h *timeline.History, needed Needed) []timeline.SnapshotID

// Drop removes the chosen snapshots of a sandbox, several adjacent ones at a time, and holds the sandbox's lock for
// one transaction at a time. Snapshots that came into use since they were chosen are kept. It returns ErrBusy if the
// sandbox or the layers were in use for too long; some snapshots may be removed then.
func (u *Upkeep) Drop(ctx context.Context, id timeline.SandboxID, choose Choice) error {
	u.thinning.Lock()
	defer u.thinning.Unlock()
	rec, h, err := u.find(ctx, string(id))
	if err != nil {
		return err
	}
	return u.drop(ctx, &rec, h, choose)
}

// drop is Drop for a history. The caller holds thinning.
func (u *Upkeep) drop(ctx context.Context, rec *meta.Sandbox, h *timeline.History, choose Choice) error {
	needed, err := u.config.DB.Held(ctx, rec.ID)
	if err != nil {
		return err
	}
	runs := timeline.Runs(h, choose(rec, h, needed), maxRun)
	for _, run := range runs {
		if err := u.dropRun(ctx, rec, h, run); err != nil {
			return err
		}
	}
	if len(runs) > 0 {
		u.MayBeDeep(rec.Head)
	}
	return nil
}

// thinPlan returns the snapshots to remove now.
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

// dropRun removes adjacent snapshots, newest first, with one merged layer. It removes them one by one if their routes
// do not form a plain chain.
func (u *Upkeep) dropRun(ctx context.Context, rec *meta.Sandbox, h *timeline.History, run []timeline.SnapshotID) error {
	c, err := u.prepareCut(ctx, run)
	if errors.Is(err, errUnlike) {
		for _, id := range run {
			if err := u.dropRun(ctx, rec, h, []timeline.SnapshotID{id}); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer c.made()
	var unused []timeline.LayerID
	gone := false
	d := Dropped{Of: rec, Snapshots: run, Reason: retention}
	err = u.config.Recorder.Drop(ctx, d, func(ctx context.Context) (err error) {
		unused, err = u.commitCut(ctx, rec.ID, c)
		gone = err == nil
		return err
	})
	switch {
	case gone && err != nil:
		u.config.Log.Error("could not write to the ledger yet", "sandbox", rec.Name, "err", err)
	case err != nil:
		ids := make([]timeline.LayerID, len(c.finalized))
		for i, l := range c.finalized {
			ids[i] = l.ID
		}
		u.Discard(ctx, ids)
		if fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) {
			return nil // it came into use, or was removed; the next check will find out
		}
		return err
	}
	u.Discard(ctx, unused)
	for _, id := range run {
		u.config.Feed.Emit(events.Dropped(rec, h.Snapshots[id], retention))
	}
	return nil
}

// cutting is a run of adjacent snapshots that is ready to be removed.
type cutting struct {
	run       []timeline.SnapshotID // newest first
	seen      []meta.Cut            // the state that it was prepared from
	led       [][]timeline.Route
	finalized []meta.Layer
	made      func()
}

// errUnlike says that a run is not a plain chain of layers.
var errUnlike = errors.New("the snapshots to merge are not neighbours")

// prepareCut makes the layers that replace those of a run. It records nothing.
func (u *Upkeep) prepareCut(ctx context.Context, run []timeline.SnapshotID) (c cutting, err error) {
	c = cutting{run: run, led: make([][]timeline.Route, len(run)), made: func() {}}
	u.shape.RLock()
	defer func() {
		if err != nil {
			c.made()
		}
	}()
	if c.seen, err = u.cuts(ctx, run); err != nil {
		u.shape.RUnlock()
		return c, err
	}
	if len(run) > 1 && !chained(run, c.seen) {
		u.shape.RUnlock()
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
			if to, made, err = u.config.Stacks.NewLayer(); err == nil {
				before := c.made
				c.made = func() { before(); made() }
				if err = u.config.Layers.Merge(ctx, to, layers); err == nil {
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
	u.shape.RUnlock()
	// The layers that they replace may be finalized, and are removed afterwards.
	for _, id := range merged {
		if err != nil {
			break
		}
		got, ferr := u.config.Layers.Finalize(ctx, id)
		c.finalized = append(c.finalized, meta.Layer{ID: id, Digest: got.Digest, DiffID: got.DiffID, Size: got.Size})
		err = ferr
	}
	if err != nil {
		u.Discard(ctx, merged)
		return c, fault.Wrap(err, "merge snapshot %s with its neighbours", run[0])
	}
	return c, nil
}

// cuts reads how each snapshot of a run is connected to its neighbors.
func (u *Upkeep) cuts(ctx context.Context, run []timeline.SnapshotID) ([]meta.Cut, error) {
	out := make([]meta.Cut, len(run))
	for i, id := range run {
		var err error
		if out[i], err = u.config.DB.Cut(ctx, id); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// chained reports whether a single route leads from above through each snapshot of a run to the next.
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

// commitCut records the removal of a run if nothing has changed since it was prepared; otherwise it returns a
// Conflict. It does not wait for a lock, so that no other caller waits longer than for one transaction. unused are
// the layers that nothing refers to any more.
func (u *Upkeep) commitCut(
	ctx context.Context, id timeline.SandboxID, c cutting,
) (unused []timeline.LayerID, err error) {
	for range patience {
		if release, ok := u.config.Sandboxes.TryAcquire(id, "deleting old automatic snapshots"); ok {
			if u.shape.TryLock() {
				defer release()
				defer u.shape.Unlock()
				return u.commitLocked(ctx, id, c)
			}
			release()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(patienceStep):
		}
	}
	return nil, ErrBusy
}

// commitLocked is commitCut with the locks of the sandbox and of layers held.
func (u *Upkeep) commitLocked(ctx context.Context, id timeline.SandboxID, c cutting) ([]timeline.LayerID, error) {
	if _, err := u.config.DB.Sandbox(ctx, string(id)); err != nil {
		return nil, err
	}
	now, err := u.cuts(ctx, c.run)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(now, c.seen) {
		return nil, fault.New(fault.Conflict, "the neighbours of snapshot %s have changed", c.run[0])
	}
	unused, err := u.config.DB.DropRun(ctx, c.run, c.led, c.finalized...)
	if err != nil {
		return nil, err
	}
	u.chainsChanged()
	return unused, nil
}
