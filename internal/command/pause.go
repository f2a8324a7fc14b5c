//go:build linux

package command

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// Pause has every process of a sandbox stand still until Resume. It is the keeper that
// remembers it, so it holds over the daemon's end.
func (r *Runner) Pause(ctx context.Context, name string) (wire.Sandbox, error) {
	s, rec, err := r.acquire(ctx, name, "pausing")
	if err != nil {
		return wire.Sandbox{}, err
	}
	err = r.setPaused(ctx, s, &rec, true)
	s.unlock()
	if err != nil {
		return wire.Sandbox{}, err
	}
	return r.c.Sandboxes.Describe(ctx, &rec), nil
}

// Resume ends a Pause. In a fork with memory that is quarantined it does again what is left
// to be done before its gate may open.
func (r *Runner) Resume(ctx context.Context, name string) (wire.Sandbox, error) {
	s, rec, err := r.acquire(ctx, name, "resuming")
	if err != nil {
		return wire.Sandbox{}, err
	}
	apart := rec.Quarantine != nil
	if s.Box() != nil || !apart {
		err = r.setPaused(ctx, s, &rec, false)
	}
	s.unlock()
	if err == nil && apart {
		err = r.c.Sandboxes.Awaken(ctx, rec.ID)
	}
	if err != nil {
		return wire.Sandbox{}, err
	}
	if rec, err = r.c.Records.Sandbox(ctx, string(rec.ID)); err != nil {
		return wire.Sandbox{}, err
	}
	return r.c.Sandboxes.Describe(ctx, &rec), nil
}

// setPaused pauses or resumes a live sandbox, and records it; one that is so already stays
// so.
func (r *Runner) setPaused(ctx context.Context, s *held, rec *meta.Sandbox, paused bool) error {
	b := s.Box()
	if b == nil {
		return sandbox.NotLive(rec.Name, "there is no process that could stand still")
	}
	if is, err := b.Paused(ctx); err != nil || is == paused {
		return err
	}
	do, word := b.Resume, wire.EventResumed
	if paused {
		do, word = b.Pause, wire.EventPaused
	}
	err := r.c.Book.Do(ctx, r.c.Book.Drafts(ctx, rec, audit.ByDaemon(&format.Pause{Event: word})...), do)
	if err == nil {
		r.c.Feed.Emit(events.About(rec, word))
	}
	return err
}
