//go:build linux

package restore

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// Pause freezes every process of a sandbox until Resume. The keeper holds this state, so it survives a restart of the
// daemon.
func (r *Restorer) Pause(ctx context.Context, name string) (wire.Sandbox, error) {
	rec, err := r.pause(ctx, name)
	if err != nil {
		return wire.Sandbox{}, err
	}
	return r.config.Sandboxes.Describe(ctx, &rec), nil
}

func (r *Restorer) pause(ctx context.Context, name string) (meta.Sandbox, error) {
	s, rec, err := r.config.Sandboxes.Acquire(ctx, name, "pausing")
	if err != nil {
		return rec, err
	}
	defer s.Unlock()
	return rec, r.setPaused(ctx, s, &rec, true)
}

// Resume ends a Pause. In a quarantined fork with memory it re-keys the fork again and opens its gate; see Release.
func (r *Restorer) Resume(ctx context.Context, name string) (wire.Sandbox, error) {
	rec, err := r.resume(ctx, name)
	if err == nil && rec.Quarantine != nil {
		err = r.Release(ctx, string(rec.ID))
	}
	if err != nil {
		return wire.Sandbox{}, err
	}
	if rec, err = r.config.Records.Sandbox(ctx, string(rec.ID)); err != nil {
		return wire.Sandbox{}, err
	}
	return r.config.Sandboxes.Describe(ctx, &rec), nil
}

// resume ends a Pause. A quarantined sandbox need not be live.
func (r *Restorer) resume(ctx context.Context, name string) (meta.Sandbox, error) {
	s, rec, err := r.config.Sandboxes.Acquire(ctx, name, "resuming")
	if err != nil {
		return rec, err
	}
	defer s.Unlock()
	if s.Box() == nil && rec.Quarantine != nil {
		return rec, nil
	}
	return rec, r.setPaused(ctx, s, &rec, false)
}

// setPaused pauses or resumes a live sandbox, and records it. It does nothing if the sandbox is already in that
// state.
func (r *Restorer) setPaused(ctx context.Context, s Held, rec *meta.Sandbox, paused bool) error {
	b := s.Box()
	if b == nil {
		return sandbox.NotLive(rec.Name, "it has no process to pause")
	}
	if is, err := b.Paused(ctx); err != nil || is == paused {
		return err
	}
	do, word := b.Resume, wire.EventResumed
	if paused {
		do, word = b.Pause, wire.EventPaused
	}
	book := r.config.Recorder
	err := book.Do(ctx, book.Drafts(ctx, rec, audit.ByDaemon(&format.Pause{Event: word})...), do)
	if err == nil && paused {
		r.config.EndTrial(rec.ID, "was paused")
	}
	if err == nil {
		r.config.Feed.Emit(events.About(rec, word))
	}
	return err
}
