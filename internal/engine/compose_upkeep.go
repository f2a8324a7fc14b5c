//go:build linux

package engine

import (
	"context"
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// upkeepConfig returns the configuration of the Upkeep of an engine.
func upkeepConfig(e *Engine) upkeep.Config {
	core := upkeepCore{e}
	return upkeep.Config{
		DB: e.DB, Layers: e.Layers, Shape: &e.shape, Sandboxes: core, Stacks: core, Recorder: core, Sweeps: core,
		Feed: e.Feed, Log: e.Logger, Now: e.Now, Go: inBackground(e),
	}
}

// inBackground returns a function that runs functions in the background until the engine is closed.
func inBackground(e *Engine) func(fn func(context.Context)) {
	return func(fn func(context.Context)) { e.bg.Go(func() error { fn(e.bgCtx); return nil }) }
}

// upkeepCore adapts the engine to upkeep.Sandboxes, upkeep.Stacks, upkeep.Recorder and upkeep.Sweeps.
type upkeepCore struct{ e *Engine }

// Acquire takes the lock of a sandbox.
func (c upkeepCore) Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return func() { h.unlock(c.e) }, rec, nil
}

// TryAcquire takes the lock of a sandbox if it is free.
func (c upkeepCore) TryAcquire(id timeline.SandboxID, what string) (release func(), ok bool) {
	h := c.e.tryLock(c.e.entry(id), what)
	if h == nil {
		return nil, false
	}
	return func() { h.unlock(c.e) }, true
}

// Whole returns an error if an adoption of the sandbox could not be undone.
func (c upkeepCore) Whole(id timeline.SandboxID) error { return c.e.whole(id, "") }

// Playing reports whether a tournament is running.
func (c upkeepCore) Playing(tournament string) bool {
	return slices.Contains(c.e.Tournaments.UnderWay(), tournament)
}

// Idle reports whether no process runs in a sandbox.
func (c upkeepCore) Idle(ctx context.Context, rec *meta.Sandbox) bool {
	return c.e.wire(ctx, rec).Procs == 0
}

// Remove removes a sandbox, with its processes only if it is the fork of a trial that has ended.
func (c upkeepCore) Remove(ctx context.Context, id timeline.SandboxID) error {
	rec, err := c.e.DB.Sandbox(ctx, string(id))
	if err != nil {
		return err
	}
	return c.e.removeOne(ctx, string(id), rec.Trial != nil)
}

// Nodes describes the snapshots of a history for clients.
func (c upkeepCore) Nodes(
	ctx context.Context, h *timeline.History,
) (map[timeline.SnapshotID]wire.Snapshot, error) {
	return c.e.Histories.Nodes(ctx, h)
}

// NewLayer names a layer that is about to be made.
func (c upkeepCore) NewLayer() (id timeline.LayerID, made func(), err error) { return c.e.newLayer() }

// Rerouted discards the cached stacks.
func (c upkeepCore) Rerouted() { c.e.stacks.Rerouted() }

// Mounted returns the layers that live roots are mounted with.
func (c upkeepCore) Mounted() map[timeline.LayerID]bool { return c.e.mounts.inUse() }

// LetGo forgets the mounts of sandboxes whose keepers have exited.
func (c upkeepCore) LetGo(ctx context.Context) error {
	e := c.e
	for _, id := range e.mounts.sandboxes() {
		if e.whole(id, "") != nil {
			continue // not in use
		}
		s, _, err := e.acquire(ctx, string(id), "checking whether it is running")
		switch fault.KindOf(err) {
		case fault.NotFound: // being removed together with its directory
			continue
		case fault.Conflict, fault.Unavailable: // in use, or possibly in use: its layers are kept
			continue
		}
		if err != nil {
			return err
		}
		if e.liveBox(s) == nil {
			err = e.mounts.forget(id)
		}
		s.unlock(e)
		if err != nil {
			return err
		}
	}
	return nil
}

// Drop calls drop, and records what was dropped.
func (c upkeepCore) Drop(ctx context.Context, d upkeep.Dropped, drop func(context.Context) error) error {
	gone := audit.Removal{Sandbox: timeline.SandboxID(format.Host), Name: string(format.Host)}
	if d.Of != nil {
		gone = c.e.Book.RemovalOf(ctx, d.Of)
	}
	gone.Snapshots, gone.Reason = d.Snapshots, d.Reason
	return c.e.Book.Free(ctx, gone, drop)
}

// SweepReferences removes references from users' repositories, and the files of imported commits that
// are not used.
func (c upkeepCore) SweepReferences(ctx context.Context) error {
	if err := c.e.refs.Sweep(ctx); err != nil {
		return err
	}
	return c.e.trees.Forget(ctx)
}

// SweepLeftovers deletes directories that belong neither to a sandbox nor to a current generation.
func (c upkeepCore) SweepLeftovers(ctx context.Context) error { return c.e.sweep(ctx) }

// SweepImages removes memory images that belong to no snapshot.
func (c upkeepCore) SweepImages(ctx context.Context, res *wire.GCResult) error {
	return c.e.Images.Sweep(ctx, res)
}

// Garbage returns the layers that may be removed: those in dead, and those on the disk without a record, except
// layers that are mounted, are being made, or will be moved back.
func (c upkeepCore) Garbage(ctx context.Context, dead []timeline.LayerID) (out []timeline.LayerID, err error) {
	// The order matters. A layer is first on the disk, then has its record, and only then leaves e.making. In another
	// order, a layer that is made meanwhile would appear in neither set.
	onDisk, err := c.e.Layers.List(ctx)
	if err != nil {
		return nil, err
	}
	c.e.mu.Lock()
	making := maps.Clone(c.e.making)
	c.e.mu.Unlock()
	adopting, err := c.e.adopting(ctx)
	if err != nil {
		return nil, err
	}
	known, err := c.e.DB.Layers(ctx)
	if err != nil {
		return nil, err
	}
	recorded := make(map[timeline.LayerID]bool, len(known))
	for _, l := range known {
		recorded[l.ID] = true
	}
	for _, id := range onDisk {
		if !recorded[id] && !making[id] && !adopting[id] {
			dead = append(dead, id)
		}
	}
	used := c.e.mounts.inUse()
	for _, id := range dead {
		if !used[id] {
			out = append(out, id)
		}
	}
	return out, nil
}
