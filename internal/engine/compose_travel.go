//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/travel"
)

// travelConfig returns the configuration of the Travel of an engine that has its Book, Git and
// cleaners.
func travelConfig(e *Engine) travel.Config {
	core := travelCore{e}
	return travel.Config{
		API: core, Sandboxes: core, Stacks: basesCore{e}, Repos: e.Repos, DB: e.DB, Layers: e.Layers, Git: e.Git,
		Book: e.Book, Keep: e.shape.RLocker(), Finalize: e.Upkeep.Finalize, Rand: e.Rand,
		RecordText: func(text string) string { return e.cleaners.Formats().RecordText(text) },
		Now:        func() time.Time { return e.Now() },
	}
}

// travelCore adapts the engine to travel.API and travel.Sandboxes.
type travelCore struct{ e *Engine }

// Create creates a sandbox.
func (c travelCore) Create(
	ctx context.Context, req wire.CreateRequest, progress func(wire.Progress),
) (wire.Sandbox, error) {
	return c.e.Create(ctx, req, progress)
}

// Remove removes a sandbox.
func (c travelCore) Remove(ctx context.Context, name string, force bool) error {
	return c.e.removeOne(ctx, name, force)
}

// Acquire takes the lock of a sandbox.
func (c travelCore) Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return func() { h.unlock(c.e) }, rec, nil
}

// Describe describes a sandbox for clients.
func (c travelCore) Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox {
	return c.e.wire(ctx, rec)
}

// Repository opens the repository that a sandbox works on.
func (c travelCore) Repository(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error) {
	return c.e.trees.Repository(ctx, rec)
}

// Stack returns the layers, and the mask, through which a sandbox sees a snapshot.
func (c travelCore) Stack(
	ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID,
) (rootspec.Stack, error) {
	st, _, err := c.e.masks.Stack(ctx, rec, at)
	return st, err
}
