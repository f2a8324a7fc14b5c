//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// accessFor returns what a presented sandbox may change and what is mounted in it, with the directories of its ignored
// paths. The caller has the lock of the sandbox.
func accessFor(ctx context.Context, e *Engine, rec *meta.Sandbox) (rootspec.Access, error) {
	a, err := e.Policies.Access(ctx, rec)
	if err != nil {
		return a, err
	}
	a.Ignored, err = prepareIgnored(ctx, e, rec, a.Ignored)
	return a, fault.Wrap(err, "start sandbox %s", rec.Name)
}

// fixed lists the paths inside a sandbox at which its policy mounts something.
func (e *Engine) fixed(ctx context.Context, rec *meta.Sandbox) ([]string, error) {
	a, err := e.Policies.Places(ctx, rec)
	if err != nil {
		return nil, err
	}
	decoys, err := e.Egress.DecoyPlaces(ctx, rec)
	return append(a.Fixed(), decoys...), err
}

// staysInPlace refuses a rewind in place that would change a read-only path or remove a mount point, because its
// mounts are attached to the directories that would be replaced. Other rewinds mount everything again.
func (e *Engine) staysInPlace(ctx context.Context, rec *meta.Sandbox, to timeline.SnapshotID) error {
	allowed, err := e.Policies.Places(ctx, rec)
	if err != nil {
		return err
	}
	decoys, err := e.Egress.DecoyPlaces(ctx, rec)
	if err != nil || allowed.IsZero() && len(decoys) == 0 {
		return err
	}
	e.shape.RLock()
	defer e.shape.RUnlock()
	a, _, err := e.masks.Stack(ctx, rec, rec.Head)
	if err != nil {
		return err
	}
	b, _, err := e.masks.Stack(ctx, rec, to)
	if err != nil {
		return err
	}
	var held []string
	for _, p := range allowed.ReadOnly {
		held = append(held, p.At...)
	}
	for _, tree := range rootspec.Differing(a, b) {
		for _, p := range append(allowed.Fixed(), decoys...) {
			in, end, err := rootfs.LayerAt(tree.Dir, p)
			if err != nil {
				return err
			}
			if end && !in || in && slices.Contains(held, p) {
				return fault.New(fault.Conflict,
					"cannot change %s in place: it is read-only or has a mount in sandbox %s, and processes are running",
					p, rec.Name).
					WithHint("leave --in-place out; the processes are then stopped")
			}
		}
	}
	return nil
}
