//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// newEgress makes the egress control of an engine that has its Policies, Feed, cleaners and Book. It may be used
// before the engine runs background work, except to watch a box.
func newEgress(e *Engine) *egress.Control {
	core := egressCore{e}
	return egress.New(egress.Config{
		Sandboxes: core, Recorder: e.Book, Records: e.DB, Policies: e.Policies, Cleaners: e.cleaners, Feed: e.Feed,
		FS: e.FS, Homes: e.Homes, Rand: e.Rand, Now: e.Now, Log: e.Logger,
		Caller: func(ctx context.Context) string { return e.Caller(ctx) },
		Go:     inBackground(e), EndTrial: e.Tournaments.EndTrial,
		AnswerGrants: func(ctx context.Context, name string, places []string, allow bool) ([]wire.NetQuestion, error) {
			return e.Grants.AnswerGrants(ctx, name, places, allow)
		},
	})
}

// egressCore adapts the engine to egress.Sandboxes.
type egressCore struct{ *Engine }

// Live implements egress.Sandboxes.
func (c egressCore) Live(ctx context.Context, name, what string) (egress.Box, meta.Sandbox, error) {
	b, rec, err := liveNow(ctx, c.Engine, name, what)
	return b, rec, err
}

// Acquire implements egress.Sandboxes.
func (c egressCore) Acquire(ctx context.Context, name, what string) (egress.Held, meta.Sandbox, error) {
	h, rec, err := c.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return egressHeld{c.Engine, h}, rec, nil
}

// Use implements egress.Sandboxes.
func (c egressCore) Use(id timeline.SandboxID) (done func()) { return c.Lifetimes.Use(id) }

// Dir implements egress.Sandboxes.
func (c egressCore) Dir(id timeline.SandboxID) string { return c.sandboxDir(id) }

// Mask implements egress.Sandboxes.
func (c egressCore) Mask(ctx context.Context, rec *meta.Sandbox) (string, error) {
	return c.masks.Of(ctx, rec)
}

// Journal implements egress.Sandboxes.
func (c egressCore) Journal(id timeline.SandboxID) journal.Place { return c.journalAt(id) }

// egressHeld is a sandbox whose lock egress control holds. It implements egress.Held.
type egressHeld struct {
	e *Engine
	h *held
}

// Proof implements egress.Held.
func (s egressHeld) Proof() *sandbox.Held { return s.h.Held }

// Box implements egress.Held.
func (s egressHeld) Box() egress.Box { return s.e.liveBox(s.h) }

// StartAgain implements egress.Held.
func (s egressHeld) StartAgain(ctx context.Context, rec *meta.Sandbox) (egress.Box, *fault.Error, error) {
	exit, err := s.e.Commands.StartAgain(ctx, commandHeld(s), rec)
	if err != nil {
		return nil, nil, err
	}
	if exit != nil {
		return nil, cannotStart(rec, exit), nil
	}
	return s.h.box, nil, nil
}

// Unlock implements egress.Held.
func (s egressHeld) Unlock() { s.h.unlock(s.e) }
