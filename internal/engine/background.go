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

// sealAll makes every new layer safe against power loss, oldest first. A layer that cannot be
// sealed is logged, and the others are sealed all the same: its content is up to a sandbox,
// and a power loss takes only the snapshots that need it. The error joins all failures.
func (e *Engine) sealAll(ctx context.Context) error {
	e.sealing.Lock()
	defer e.sealing.Unlock()
	ids, err := e.DB.LayersUnsealed(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := e.sealOne(ctx, l.ID)
		if err == nil || ctx.Err() != nil {
			continue
		}
		e.Logger.Warn("a layer is not sealed yet; a power loss would take its snapshot", "layer", l.ID, "err", err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sealOne seals a layer and records that. It ignores the error of a layer that was removed
// meanwhile.
func (e *Engine) sealOne(ctx context.Context, id timeline.LayerID) error {
	err := e.sealWhileKept(ctx, id)
	if err == nil {
		return nil
	}
	if _, gone := e.DB.Layer(ctx, id); fault.Is(gone, fault.NotFound) {
		return nil
	}
	return err
}

func (e *Engine) sealWhileKept(ctx context.Context, id timeline.LayerID) error {
	kept, done := e.whileKept(ctx, id)
	defer done()
	if _, err := e.DB.Layer(ctx, id); err != nil { // it was removed before removing could cancel this
		return err
	}
	sealed, err := e.Layers.Seal(kept, id)
	if err != nil {
		return err
	}
	if sealed.Digest == "" {
		e.Logger.Warn("a layer is flushed, but no manifest can describe it: it cannot be verified", "layer", id)
	}
	err = e.DB.MarkSealed(ctx, id, sealed.Digest, sealed.DiffID, sealed.Size)
	return fault.Wrap(err, "record that layer %s is sealed", id)
}

// seal is the sealing of a layer that is under way.
type seal struct {
	layer  timeline.LayerID
	cancel context.CancelCauseFunc
}

// whileKept returns the context for sealing a layer, which notKept cancels. The caller holds
// sealing, and calls done.
func (e *Engine) whileKept(ctx context.Context, id timeline.LayerID) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	e.underSeal = seal{id, cancel}
	e.mu.Unlock()
	return ctx, func() {
		e.mu.Lock()
		e.underSeal = seal{}
		e.mu.Unlock()
		cancel(nil)
	}
}

// notKept cancels the seal in progress if its layer is among ids, whose records are gone:
// hashing it would delay other layers, and keep its space from being freed.
func (e *Engine) notKept(ids []timeline.LayerID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(ids, e.underSeal.layer) {
		e.underSeal.cancel(fault.New(fault.NotFound, "layer %s was removed while it was sealed", e.underSeal.layer))
	}
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
