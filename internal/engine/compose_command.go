//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Ended is the result of Box.Wait.
type Ended = command.Ended

// commandConfig returns the configuration of the Commands of an engine that has its Book, Policies and
// Egress.
func commandConfig(e *Engine) command.Config {
	return command.Config{
		Sandboxes: commandCore{e}, Memory: e.Images, Register: e.register, Records: e.DB, Book: e.Book, Ledger: e.Ledger,
		Cleaners: e.cleaners, Budgets: e.budgets, Journals: e.journals, Policies: e.Policies, Feed: e.Feed, Rand: e.Rand,
		UID: e.UID,
		Go: func(fn func(context.Context)) {
			if e.bgCtx.Err() == nil {
				inBackground(e)(fn)
			}
		},
		Caller: func(ctx context.Context) string { return e.Caller(ctx) },
		Now:    func() time.Time { return e.Now() }, Log: e.Logger,
	}
}

// commandCore adapts the engine to command.Sandboxes.
type commandCore struct{ e *Engine }

// Acquire implements command.Sandboxes.
func (c commandCore) Acquire(ctx context.Context, name, what string) (command.Held, meta.Sandbox, error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err == nil && rec.Unkeyed && !restore.Rekeys(ctx) {
		h.unlock(c.e)
		if err = c.e.Restorer.RekeyFork(ctx, rec.ID); err == nil {
			h, rec, err = c.e.acquire(ctx, string(rec.ID), what)
		}
	}
	if err != nil {
		return nil, rec, err
	}
	return commandHeld{c.e, h}, rec, nil
}

// Use implements command.Sandboxes.
func (c commandCore) Use(id timeline.SandboxID) (done func()) { return c.e.Lifetimes.Use(id) }

// Remove implements command.Sandboxes.
func (c commandCore) Remove(ctx context.Context, id timeline.SandboxID) error {
	return c.e.removeOne(ctx, string(id), true)
}

// Halted implements command.Sandboxes.
func (c commandCore) Halted(rec *meta.Sandbox, since time.Time) bool {
	return c.e.Egress.Halted(rec, since)
}

// commandSandbox implements command.Sandbox.
type commandSandbox struct {
	e *Engine
	s *entry
}

// Acquire implements command.Sandbox.
func (c commandSandbox) Acquire(ctx context.Context, what string) (command.Held, error) {
	h, err := c.e.lock(ctx, c.s, what)
	if err != nil {
		return nil, err
	}
	return commandHeld{c.e, h}, nil
}

// commandHeld is a sandbox whose lock package command holds. It implements command.Held.
type commandHeld struct {
	e *Engine
	h *held
}

// Proof implements command.Held.
func (c commandHeld) Proof() *sandbox.Held { return c.h.Held }

// Sandbox implements command.Held.
func (c commandHeld) Sandbox() command.Sandbox { return commandSandbox{c.e, c.h.entry} }

// Box implements command.Held.
func (c commandHeld) Box() command.Box { return c.e.liveBox(c.h) }

// Start implements command.Held.
func (c commandHeld) Start(
	ctx context.Context, rec *meta.Sandbox, more ...audit.Statement,
) (command.Box, *audit.Pending, error) {
	return c.e.startRecording(ctx, c.h, rec, more...)
}

// StartOther implements command.Held.
func (c commandHeld) StartOther(ctx context.Context, rec *meta.Sandbox, failed error) (command.Box, error) {
	return restart(ctx, c.e, c.h, rec, failed)
}

// Capture implements command.Held.
func (c commandHeld) Capture(ctx context.Context, rec *meta.Sandbox, n command.Note) (command.Taken, error) {
	why := note{
		cause: n.Cause, message: n.Message, exit: n.Exit, aside: n.Aside, still: n.Alone && !c.h.mapped,
	}
	if n.With != nil {
		why.with = func(t taken) []audit.Statement { return n.With(commandTaken(t)) }
	}
	t, err := c.e.capture(ctx, c.h, rec, why)
	return commandTaken(t), err
}

// commandTaken converts the result of a capture.
func commandTaken(t taken) command.Taken {
	return command.Taken{
		ID: t.id, Changed: t.changed, Paths: t.stats.Paths, Recorded: t.recorded,
		Changes: func(c audit.Cleaner) []format.Change { return changesOf(c, t) },
	}
}

// Look implements command.Held.
func (c commandHeld) Look(ctx context.Context, rec *meta.Sandbox) (command.Look, error) {
	g, err := c.glance(ctx, rec)
	if err == nil && g.Changed && c.h.changed.IsZero() {
		c.h.changed = time.Now() // not h.changed itself, since the clock may have been set back
		if g.Oldest.Before(c.h.changed) {
			c.h.changed = g.Oldest
		}
	}
	return command.Look{Glance: g, Since: c.h.changed, Mapped: c.h.mapped, Last: c.h.captured}, err
}

// glance reports whether there is something to capture.
func (c commandHeld) glance(ctx context.Context, rec *meta.Sandbox) (layer.Glance, error) {
	e := c.e
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return layer.Glance{}, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return layer.Glance{}, err
	}
	in := layer.CaptureInput{Parts: parts, Index: e.indexes.present(c.h, rec), Plain: drv.Plain(), TimesAside: true}
	e.shape.RLock()
	defer e.shape.RUnlock()
	in.Head = func() *layer.View {
		v, err := e.Histories.View(ctx, rec, rec.Head, parts)
		if err != nil {
			return nil
		}
		return v
	}
	if in.Index == nil {
		in.Index, _ = lostIndex(drv, rec)
	}
	return e.Layers.Glance(ctx, in)
}

// EndPrograms implements command.Held.
func (c commandHeld) EndPrograms(ctx context.Context, rec *meta.Sandbox) *audit.EndingPrograms {
	c.h.ending = c.h.programs.End(ctx, rec)
	return c.h.ending
}

// Unlock implements command.Held.
func (c commandHeld) Unlock() { c.h.unlock(c.e) }
