//go:build linux

package engine

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// newRestorer makes the Restorer of an engine that has its Book, Feed, Images and cleaners.
func newRestorer(e *Engine) *restore.Restorer {
	return restore.New(restore.Config{
		Sandboxes: restoreCore{e}, Records: e.DB, Recorder: e.Book, Images: e.Images, Cleaners: e.cleaners, Feed: e.Feed,
		EndTrial: func(id timeline.SandboxID, why string) { e.Tournaments.EndTrial(id, why) }, // which is made later
		Rand:     e.Rand, Now: e.Now, Log: e.Logger,
	})
}

// restoreCore adapts the engine to restore.Sandboxes.
type restoreCore struct{ e *Engine }

// Acquire implements restore.Sandboxes.
func (c restoreCore) Acquire(ctx context.Context, name, what string) (restore.Held, meta.Sandbox, error) {
	h, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return restoreHeld{c.e, h}, rec, nil
}

// Snapshot implements restore.Sandboxes.
func (c restoreCore) Snapshot(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID,
) (timeline.Snapshot, error) {
	h, err := c.e.Histories.History(ctx, rec)
	if err != nil {
		return timeline.Snapshot{}, err
	}
	return h.Snapshots[id], nil
}

// Exec implements restore.Sandboxes.
func (c restoreCore) Exec(
	ctx context.Context, id string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	return c.e.Commands.ExecWithin(ctx, id, req, stream,
		command.Evidence{Output: limit.RekeyOutput, Paths: limit.RekeyPaths})
}

// Files implements restore.Sandboxes.
func (c restoreCore) Files(ctx context.Context, id string) (restore.Files, error) {
	f, err := c.e.Files.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Describe implements restore.Sandboxes.
func (c restoreCore) Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox {
	return c.e.wire(ctx, rec)
}

// restoreHeld is a sandbox whose lock package restore holds. It implements restore.Held.
type restoreHeld struct {
	e *Engine
	h *held
}

// Box implements restore.Held.
func (s restoreHeld) Box() restore.Box { return s.e.liveBox(s.h) }

// Bring implements restore.Held.
func (s restoreHeld) Bring(ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID) error {
	n := note{cause: timeline.CauseCheckout, message: "before its processes resume from memory"}
	if _, err := s.e.capture(ctx, s.h, rec, n); err != nil {
		return err
	}
	if rec.Head == at && !s.e.presented(rec) {
		return nil
	}
	return s.e.reset(ctx, s.h, rec, at, nil)
}

// Start implements restore.Held.
func (s restoreHeld) Start(
	ctx context.Context, rec *meta.Sandbox, img *images.Image,
) (_ restore.Box, recorded func() error, err error) {
	b, enforced, err := s.e.startBox(ctx, s.h, rec, img)
	if err != nil {
		return nil, nil, err
	}
	started := s.e.Book.Begin(ctx, rec, startRecord(enforced))
	s.e.watchPrograms(ctx, s.h, rec, b, started)
	return b, started.Wait, nil
}

// Adopt implements restore.Held.
func (s restoreHeld) Adopt(ctx context.Context, rec *meta.Sandbox, run string) (ids []string, err error) {
	return s.e.Commands.Adopt(ctx, commandHeld(s), rec, s.h.box, run)
}

// Stop implements restore.Held.
func (s restoreHeld) Stop(ctx context.Context) error { return s.e.stopBox(ctx, s.h, 0) }

// Unlock implements restore.Held.
func (s restoreHeld) Unlock() { s.h.unlock(s.e) }
