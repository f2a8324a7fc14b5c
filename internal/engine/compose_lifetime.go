//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/lifetime"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// lifetimeConfig returns the configuration of the Lifetimes of an engine that has its Upkeep.
func lifetimeConfig(e *Engine) lifetime.Config {
	core := lifetimeCore{e}
	return lifetime.Config{
		DB: e.DB, Finder: core, Ender: core, Drop: e.Upkeep.Drop, Log: e.Logger,
		Now: e.Now, Relabel: core.relabel,
	}
}

// lifetimeCore adapts the engine to lifetime.Finder and lifetime.Ender.
type lifetimeCore struct{ e *Engine }

// Acquire takes the lock of a sandbox.
func (c lifetimeCore) Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return func() { h.unlock(c.e) }, rec, nil
}

// Describe describes a sandbox for clients.
func (c lifetimeCore) Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox {
	return c.e.wire(ctx, rec)
}

// relabel records the labels of rec as those that the sandbox is about to get from do, in place of before.
func (c lifetimeCore) relabel(
	ctx context.Context, rec *meta.Sandbox, before map[string]string, do func(context.Context) error,
) error {
	clean := c.e.cleaners.Formats()
	body := &format.Labels{Before: clean.Labels(before), By: c.e.Caller(ctx), Labels: clean.Labels(rec.Labels)}
	return c.e.Book.Do(ctx, c.e.Book.Drafts(ctx, rec, audit.ByDaemon(body)...), do)
}

// Known returns the sandboxes that were used since Open.
func (c lifetimeCore) Known() (ids []timeline.SandboxID) {
	for _, s := range c.e.known() {
		ids = append(ids, s.ID)
	}
	return ids
}

// knownEntry returns the entry of a sandbox; nil if it was removed, or not used since Open.
func knownEntry(e *Engine, id timeline.SandboxID) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.boxes[id]
}

// Box returns the box of a sandbox unless another operation holds its lock.
func (c lifetimeCore) Box(id timeline.SandboxID, what string) (b lifetime.Box, ok bool) {
	s := knownEntry(c.e, id)
	if s == nil {
		return nil, true
	}
	h := c.e.tryLock(s, what)
	if h == nil {
		return nil, false
	}
	defer h.unlock(c.e)
	if live := c.e.liveBox(h); live != nil {
		return live, true
	}
	return nil, true
}

// Remove removes a sandbox and kills its processes, if still holds.
func (c lifetimeCore) Remove(ctx context.Context, id timeline.SandboxID, still lifetime.Still) error {
	return c.e.removeOne(ctx, string(id), true, still)
}

// Stop stops a sandbox, if still holds.
func (c lifetimeCore) Stop(ctx context.Context, id timeline.SandboxID, still lifetime.Still) error {
	_, err := c.e.stopIf(ctx, string(id), still)
	return err
}

// StopIdle captures a sandbox before and after it stops its box.
func (c lifetimeCore) StopIdle(
	ctx context.Context, id timeline.SandboxID, b lifetime.Box, message string, still lifetime.Still,
) (stopped bool, err error) {
	sbx := knownEntry(c.e, id)
	if sbx == nil {
		return false, nil // removed meanwhile
	}
	s, err := c.e.lock(ctx, sbx, "stopping it because it is idle")
	if err != nil {
		return false, err
	}
	defer s.unlock(c.e)
	rec, err := c.e.DB.Sandbox(ctx, string(id))
	if err != nil || s.box != b || !still(&rec) {
		return false, err
	}
	why := note{cause: timeline.CauseAuto, message: message}
	if _, err := c.e.capture(ctx, s, &rec, why); err != nil {
		return false, err
	}
	c.e.Commands.Halt(s.Held)
	if err := c.e.stopBox(ctx, s, stopGrace); err != nil {
		return false, err
	}
	_, err = c.e.capture(ctx, s, &rec, why)
	return true, err
}

// Checkout rewinds a sandbox to one of its snapshots.
func (c lifetimeCore) Checkout(ctx context.Context, id timeline.SandboxID, to timeline.SnapshotID) error {
	_, err := c.e.Checkout(ctx, string(id), wire.CheckoutRequest{Node: string(to)})
	return err
}
