//go:build linux

package engine

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// wake tells the background that there may be something to seal or merge.
func (e *Engine) wake() {
	select {
	case e.work <- struct{}{}:
	default:
	}
}

// background seals new layers, keeps chains shallow and thins out old automatic
// snapshots, until ctx ends. A
// failure is logged and tried again when something new is captured: nothing that
// was acknowledged depends on it.
func (e *Engine) background(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.work:
		}
		if err := e.sealAll(ctx); err != nil && ctx.Err() == nil {
			e.Logger.Error("layers are not sealed yet", "err", err)
		}
		if err := e.mergeAll(ctx); err != nil && ctx.Err() == nil {
			e.Logger.Error("chains are not merged yet", "err", err)
		}
		if err := e.thinAll(ctx); err != nil && ctx.Err() == nil {
			e.Logger.Error("old automatic snapshots are not dropped yet", "err", err)
		}
	}
}

// sealAll makes every new layer safe against power loss, oldest first: what is
// below a sealed layer is sealed.
func (e *Engine) sealAll(ctx context.Context) error {
	e.sealing.Lock()
	defer e.sealing.Unlock()
	ids, err := e.DB.LayersUnsealed(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		sealed, err := e.Layers.Seal(ctx, id.ID)
		if fault.Is(err, fault.NotFound) {
			if _, gone := e.DB.Layer(ctx, id.ID); fault.Is(gone, fault.NotFound) {
				continue // its snapshot was deleted meanwhile
			}
		}
		if err != nil {
			return fault.Wrap(err, "seal layer %s", id.ID)
		}
		if sealed.Digest == "" {
			e.Logger.Warn("a layer is flushed, but has paths too long for a manifest: it cannot be verified", "layer", id.ID)
		}
		err = e.DB.MarkSealed(ctx, id.ID, sealed.Digest, sealed.DiffID, sealed.Size)
		if err != nil && !fault.Is(err, fault.NotFound) { // deleted while it was sealed
			return err
		}
	}
	return nil
}

// mayBeDeep has the background look whether a snapshot's chain needs merging.
func (e *Engine) mayBeDeep(id timeline.SnapshotID) {
	e.mu.Lock()
	e.deep[id] = true
	e.mu.Unlock()
	e.wake()
}

// mergeAll builds the merged layers that keep chains shallow, for every snapshot
// that mayBeDeep was told of. What cannot be done now is tried again next time.
func (e *Engine) mergeAll(ctx context.Context) error {
	e.merging.Lock()
	defer e.merging.Unlock()
	e.mu.Lock()
	ids := slices.Collect(maps.Keys(e.deep))
	e.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if err := e.merge(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		e.mu.Lock()
		delete(e.deep, id)
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

// merge builds what PlanMerges asks for below a snapshot, deepest first.
func (e *Engine) merge(ctx context.Context, top timeline.SnapshotID) error {
	e.mu.Lock()
	known := e.shallow[top]
	e.mu.Unlock()
	if known {
		return nil
	}
	line, err := e.DB.Lineage(ctx, top)
	if err != nil || len(line.Parents) == 0 {
		return err // deleted meanwhile
	}
	plans, err := line.Merges(top)
	if err != nil {
		return err
	}
	for _, p := range plans {
		if err := e.mergeOne(ctx, p); err != nil {
			return err
		}
	}
	e.mu.Lock()
	if len(e.shallow) >= maxStacks {
		clear(e.shallow)
	}
	e.shallow[top] = true
	e.mu.Unlock()
	return nil
}

func (e *Engine) mergeOne(ctx context.Context, p timeline.MergePlan) (err error) {
	// Deleting a snapshot takes layers away: not while they are read here.
	e.shape.RLock()
	defer e.shape.RUnlock()
	id, made, err := e.newLayer()
	if err != nil {
		return err
	}
	defer made()
	if err := e.Layers.Merge(ctx, id, p.Layers); err != nil {
		return fault.Wrap(err, "merge layers below snapshot %s", p.Top)
	}
	err = e.DB.AddRoute(ctx, timeline.Route{Top: p.Top, Below: p.Below, Layer: id, Merged: true})
	if err != nil {
		return errors.Join(err, e.Layers.Remove(ctx, id))
	}
	e.rerouted()
	return nil
}
