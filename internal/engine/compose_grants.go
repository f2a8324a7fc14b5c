//go:build linux

package engine

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grants"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// newGrants makes the grants of an engine that has its Book.
func newGrants(e *Engine) *grants.Grants {
	return grants.New(grants.Config{
		Sandboxes: grantsCore{e}, Store: e.DB, Broker: e.Broker, Recorder: e.Book, Socket: e.BrokerSocket,
		Key: e.DB.Derive("placeholders"), Rand: e.Rand, Now: e.Now, Log: e.Logger,
		Caller: func(ctx context.Context) string { return e.Caller(ctx) },
		Clean:  func(text string) string { return e.cleaners.Formats().RecordText(text) },
	})
}

// grantsCore adapts the engine to grants.Sandboxes.
type grantsCore struct{ e *Engine }

// Acquire implements grants.Sandboxes.
func (c grantsCore) Acquire(ctx context.Context, name, what string) (grants.Held, meta.Sandbox, error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return grantsHeld{c.e, h}, rec, nil
}

// Journal implements grants.Sandboxes.
func (c grantsCore) Journal(id timeline.SandboxID) journal.Place { return c.e.journalAt(id) }

// grantsHeld is a sandbox whose lock package grants holds. It implements grants.Held.
type grantsHeld struct {
	e *Engine
	h *held
}

// Box implements grants.Held.
func (s grantsHeld) Box() grants.Box {
	if b := s.e.liveBox(s.h); b != nil {
		return b
	}
	return nil
}

// Unlock implements grants.Held.
func (s grantsHeld) Unlock() { s.h.unlock(s.e) }

// createGranted is Engine.Create for a request that may have grants, in its policy as well: make creates the sandbox.
// If a grant cannot be given, the sandbox is removed, unless the grant is optional.
func createGranted(
	ctx context.Context, e *Engine, req *wire.CreateRequest, make func() (wire.Sandbox, error),
) (wire.Sandbox, error) {
	section, err := policies.Secrets(req.Policy)
	if err != nil {
		return wire.Sandbox{}, err
	}
	if len(req.Grants)+len(section.Given) > len(section.Requested) { // to requests, the owner consents
		if err := e.MayGrant(ctx); err != nil {
			return wire.Sandbox{}, fault.Wrap(err, "create a sandbox with grants")
		}
	}
	want, err := e.Grants.Wanted(ctx, section, req.Grants)
	if err != nil {
		return wire.Sandbox{}, err
	}
	w, err := make()
	if err != nil {
		return w, err
	}
	w.Notes = append(w.Notes, want.Notes...)
	for _, name := range slices.Sorted(maps.Keys(want.Specs)) {
		_, err := e.Grants.GiveGrant(ctx, w.ID, name, want.Specs[name])
		switch {
		case err == nil:
		case want.Optional[name] && (fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unsupported)):
			w.Notes = append(w.Notes, grants.Omitted(name, err))
		default:
			return wire.Sandbox{}, errors.Join(err, e.removeOne(context.WithoutCancel(ctx), w.ID, true))
		}
	}
	return w, nil
}
