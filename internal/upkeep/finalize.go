//go:build linux

package upkeep

import (
	"context"
	"errors"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Finalize finalizes every new layer, oldest first, so that it survives a power loss. A layer that cannot be
// finalized is logged, and does not block the others: its content is up to a sandbox, and a power loss takes
// only the snapshots that need it. The error joins all failures. The caller may hold a sandbox's lock, but
// not Config.Shape.
func (u *Upkeep) Finalize(ctx context.Context) error {
	u.finalizing.Lock()
	defer u.finalizing.Unlock()
	ids, err := u.config.DB.UnfinalizedLayers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := u.finalizeOne(ctx, l.ID)
		if err == nil || ctx.Err() != nil {
			continue
		}
		u.config.Log.Warn("could not finalize a layer; a power failure would lose its snapshot", "layer", l.ID, "err", err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// finalizeOne finalizes a layer and records that. It ignores the error of a layer that was removed meanwhile.
func (u *Upkeep) finalizeOne(ctx context.Context, id timeline.LayerID) error {
	err := u.finalizeWhileKept(ctx, id)
	if err == nil {
		return nil
	}
	if _, gone := u.config.DB.Layer(ctx, id); fault.Is(gone, fault.NotFound) {
		return nil
	}
	return err
}

func (u *Upkeep) finalizeWhileKept(ctx context.Context, id timeline.LayerID) error {
	kept, done := u.whileKept(ctx, id)
	defer done()
	if _, err := u.config.DB.Layer(ctx, id); err != nil { // it was removed before the removal could cancel this
		return err
	}
	finalized, err := u.config.Layers.Finalize(kept, id)
	if err != nil {
		return err
	}
	if finalized.Digest == "" {
		u.config.Log.Warn("a layer was synced without a manifest; it cannot be verified", "layer", id)
	}
	err = u.config.DB.MarkFinalized(ctx, id, finalized.Digest, finalized.DiffID, finalized.Size)
	return fault.Wrap(err, "record that layer %s is finalized", id)
}

// finalization is a layer that is being finalized.
type finalization struct {
	layer  timeline.LayerID
	cancel context.CancelCauseFunc
}

// whileKept returns the context for finalizing a layer, which CancelFinalize cancels. The caller holds finalizing,
// and calls done.
func (u *Upkeep) whileKept(ctx context.Context, id timeline.LayerID) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	u.underway = finalization{id, cancel}
	u.mu.Unlock()
	return ctx, func() {
		u.mu.Lock()
		u.underway = finalization{}
		u.mu.Unlock()
		cancel(nil)
	}
}

// Secure waits until all that is recorded would survive a power loss. The caller may hold a sandbox's lock,
// but not Config.Shape.
func (u *Upkeep) Secure(ctx context.Context) error {
	if err := u.Finalize(ctx); err != nil {
		return err
	}
	return u.config.DB.Flush()
}

// CancelFinalize stops finalizing a layer if it is among ids, whose records are removed: hashing it would delay
// other layers, and keep its space from being freed. It does not wait, and the caller may hold any lock.
func (u *Upkeep) CancelFinalize(ids []timeline.LayerID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Contains(ids, u.underway.layer) {
		u.underway.cancel(fault.New(fault.NotFound, "layer %s was removed while it was finalized", u.underway.layer))
	}
}
