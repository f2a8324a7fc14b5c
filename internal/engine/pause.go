//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// Pause has every process of a sandbox stand still until Resume. It is the keeper that
// remembers it, so it holds over the daemon's end.
func (e *Engine) Pause(ctx context.Context, name string) (wire.Sandbox, error) {
	s, rec, err := e.acquire(ctx, name, "pausing")
	if err != nil {
		return wire.Sandbox{}, err
	}
	err = e.setPaused(ctx, s, &rec, true)
	s.unlock(e)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return e.wire(ctx, &rec), nil
}

// Resume ends a Pause. In a fork with memory that is quarantined it does again what is left
// to be done before its gate may open.
func (e *Engine) Resume(ctx context.Context, name string) (wire.Sandbox, error) {
	s, rec, err := e.acquire(ctx, name, "resuming")
	if err != nil {
		return wire.Sandbox{}, err
	}
	apart := rec.Quarantine != nil
	if e.liveBox(s) != nil || !apart {
		err = e.setPaused(ctx, s, &rec, false)
	}
	s.unlock(e)
	if err == nil && apart {
		err = e.awaken(ctx, string(rec.ID))
	}
	if err != nil {
		return wire.Sandbox{}, err
	}
	if rec, err = e.DB.Sandbox(ctx, string(rec.ID)); err != nil {
		return wire.Sandbox{}, err
	}
	return e.wire(ctx, &rec), nil
}

// setPaused pauses or resumes a live sandbox, and records it; one that is so already stays
// so.
func (e *Engine) setPaused(ctx context.Context, s *held, rec *meta.Sandbox, paused bool) error {
	b := e.liveBox(s)
	if b == nil {
		return notLive(rec, "there is no process that could stand still")
	}
	if is, err := b.Paused(ctx); err != nil || is == paused {
		return err
	}
	do, word := b.Resume, wire.EventResumed
	if paused {
		do, word = b.Pause, wire.EventPaused
	}
	err := e.Book.Do(ctx, e.Book.Drafts(ctx, rec, audit.ByDaemon(&format.Pause{Event: word})...), do)
	if err == nil {
		e.Feed.Emit(events.About(rec, word))
	}
	return err
}
