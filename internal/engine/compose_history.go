//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/meta"
)

// historyConfig returns the configuration of the Histories of an engine that has its Upkeep and Images.
func historyConfig(e *Engine) history.Config {
	return history.Config{
		DB: e.DB, Layers: e.Layers, Masks: e.masks, Sandboxes: historyCore{e}, Budgets: e.budgets,
		Cleaners: e.cleaners, Feed: e.Feed, Shape: &e.shape, Finalize: e.Upkeep.Finalize,
		VerifyRecords: e.Records.VerifyAll, VerifyImages: e.Images.Verify, Now: func() time.Time { return e.Now() },
	}
}

// historyCore adapts the engine to history.Sandboxes.
type historyCore struct{ e *Engine }

// Acquire takes the lock of a sandbox.
func (c historyCore) Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return func() { h.unlock(c.e) }, rec, nil
}

// Root opens the directories in which changes of the live root appear.
func (c historyCore) Root(ctx context.Context, rec *meta.Sandbox) (*history.Root, error) {
	if !c.e.presented(rec) {
		return nil, nil
	}
	drv, live, err := c.e.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return nil, err
	}
	return &history.Root{Parts: parts, Plain: drv.Plain()}, nil
}
