//go:build linux

package upkeep

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// maxShallow is how many snapshots are cached whose chains need no merging.
const maxShallow = 1 << 15

// MayBeDeep makes Work check whether a snapshot's chain needs merging. It does not wait, and the caller may
// hold any lock.
func (u *Upkeep) MayBeDeep(id timeline.SnapshotID) {
	queue(u, u.deep, id)
	u.Wake()
}

// queue adds to a queue of u, which mu guards.
func queue[ID comparable](u *Upkeep, q map[ID]bool, id ID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	q[id] = true
}

// queued empties a queue of u, and returns its content.
func queued[ID comparable](u *Upkeep, q map[ID]bool) []ID {
	u.mu.Lock()
	defer u.mu.Unlock()
	ids := slices.Collect(maps.Keys(q))
	clear(q)
	return ids
}

// Merge makes the merged layers that keep chains short, for every snapshot that MayBeDeep has queued. Snapshots for
// which this fails stay queued.
func (u *Upkeep) Merge(ctx context.Context) error {
	u.merging.Lock()
	defer u.merging.Unlock()
	var errs []error
	for _, id := range queued(u, u.deep) {
		if err := u.merge(ctx, id); err != nil {
			errs = append(errs, err)
			queue(u, u.deep, id)
		}
	}
	return errors.Join(errs...)
}

// Flatten merges the chain below a snapshot immediately, whatever is cached about it. The caller may hold a sandbox's
// lock, but not Config.Shape.
func (u *Upkeep) Flatten(ctx context.Context, top timeline.SnapshotID) error {
	u.mu.Lock()
	delete(u.shallow, top)
	u.mu.Unlock()
	return u.merge(ctx, top)
}

// chainsChanged discards the cache of chains.
func (u *Upkeep) chainsChanged() {
	u.config.Stacks.Rerouted()
	u.mu.Lock()
	clear(u.shallow)
	u.mu.Unlock()
}

// merge makes the merged layers that the lineage of a snapshot needs, deepest first.
func (u *Upkeep) merge(ctx context.Context, top timeline.SnapshotID) error {
	u.mu.Lock()
	known := u.shallow[top]
	u.mu.Unlock()
	if known {
		return nil
	}
	line, err := u.config.DB.Lineage(ctx, top)
	if err != nil || len(line.Parents) == 0 {
		return err // deleted meanwhile
	}
	plans, err := line.Merges(top)
	if err != nil {
		return err
	}
	for _, p := range plans {
		if err := u.mergeOne(ctx, p); err != nil {
			return err
		}
	}
	u.mu.Lock()
	if len(u.shallow) >= maxShallow {
		clear(u.shallow)
	}
	u.shallow[top] = true
	u.mu.Unlock()
	return nil
}

func (u *Upkeep) mergeOne(ctx context.Context, p timeline.MergePlan) (err error) {
	// Hold shape, so that the layers read here are not removed.
	u.shape.RLock()
	defer u.shape.RUnlock()
	id, made, err := u.config.Stacks.NewLayer()
	if err != nil {
		return err
	}
	defer made()
	if err := u.config.Layers.Merge(ctx, id, p.Layers); err != nil {
		return fault.Wrap(err, "merge layers below snapshot %s", p.Top)
	}
	err = u.config.DB.AddRoute(ctx, timeline.Route{Top: p.Top, Below: p.Below, Layer: id, Merged: true})
	if err != nil {
		return errors.Join(err, u.config.Layers.Remove(ctx, id))
	}
	u.config.Stacks.Rerouted()
	return nil
}
