//go:build linux

package engine

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/upkeep"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Remove removes sandboxes. Snapshots that others descend from stay until garbage collection finds them unused. It
// returns the names of the removed sandboxes, also with an error.
func (e *Engine) Remove(ctx context.Context, names []string, force bool) (removed []string, err error) {
	for _, name := range names {
		if err := e.removeOne(ctx, name, force); err != nil {
			return removed, err
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// RemoveWithLedger is Remove for a sandbox whose records are removed too; the removal is recorded for the host. For a
// sandbox that was removed earlier, named by its id, it removes only the records.
func (e *Engine) RemoveWithLedger(ctx context.Context, name string, force bool) error {
	id, _, err := e.Records.Whose(ctx, name)
	if err != nil {
		return err
	}
	if id == format.Host {
		return fault.New(fault.Invalid, "cannot remove the records of the host").WithHint("name a sandbox")
	}
	if err := e.removeOne(ctx, string(id), force); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	err = e.Ledger.Remove(context.WithoutCancel(ctx), id)
	if fault.Is(err, fault.NotFound) {
		return nil // the sandbox never had records
	}
	return fault.Wrap(err, "remove the records of sandbox %s", name)
}

// removeOne removes a sandbox; with force, it kills its processes. It does nothing if one of still returns false once
// the lock of the sandbox is held.
func (e *Engine) removeOne(
	ctx context.Context, name string, force bool, still ...func(*meta.Sandbox) bool,
) (err error) {
	acquire := e.acquire
	if force {
		acquire = func(ctx context.Context, name, what string) (*held, meta.Sandbox, error) {
			return e.acquireToEnd(ctx, e.acquireAny, name, what, "was removed", 0)
		}
	}
	s, rec, err := acquire(ctx, name, "being removed")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	for _, is := range still {
		if !is(&rec) {
			return nil
		}
	}
	e.Tournaments.EndTrial(rec.ID, "was removed")
	e.Commands.Halt(s.Held)
	box := e.liveBox(s)
	if box != nil {
		n, err := 0, error(nil)
		if !force { // an init that does not answer must not prevent the removal
			n, err = box.Procs(ctx)
		}
		if err != nil && e.liveBox(s) != nil {
			return err
		}
		if n > 0 {
			return fault.New(fault.Conflict, "cannot remove sandbox %s: it has %d running processes", rec.Name, n).
				WithHint("stop it first: coppice stop %s; or remove it with its processes: coppice rm --force "+
					"%s", rec.Name, rec.Name)
		}
		if err := e.stopBox(ctx, s, 0); err != nil {
			return err
		}
	}
	if err := e.Grants.Removing(ctx, &rec); err != nil {
		return err
	}
	lost := e.journals.Close(ctx, rec.ID)
	defer func() {
		if err != nil {
			e.journals.Reopen(rec.ID)
		}
	}()
	if err := s.awaitPrograms(ctx); err != nil {
		return err
	}
	e.Commands.EndAll(ctx, s.Held, &rec)
	gone := e.Book.RemovalOf(ctx, &rec)
	gone.Removed, gone.Lost = true, lost
	return e.Book.Free(ctx, gone, func(ctx context.Context) error { return e.takeAway(ctx, &rec, box) })
}

// takeAway removes a sandbox whose processes have exited. It waits until the disk space is freed,
// unless ctx is canceled before.
func (e *Engine) takeAway(ctx context.Context, rec *meta.Sandbox, box Box) error {
	left, err := e.refs.Leaving(ctx, rec)
	if err != nil {
		return err
	}
	if err := upkeep.LockShape(ctx, &e.shape); err != nil {
		left(err)
		return err
	}
	unused, err := e.DB.DeleteSandbox(ctx, rec.ID)
	if err == nil {
		if err := e.masks.Removed(ctx, rec); err != nil {
			e.Logger.Warn("could not remove the identity of a removed sandbox; gc will remove it", "sandbox", rec.ID, "err", err)
		}
	}
	e.shape.Unlock()
	left(err)
	if err != nil {
		return err
	}
	e.Upkeep.CancelFinalize(unused)
	e.Feed.Emit(events.About(rec, wire.EventRemoved))
	e.mu.Lock()
	delete(e.boxes, rec.ID)
	e.mu.Unlock()
	e.Files.Forget(rec.ID)
	e.mounts.removed(rec.ID)
	e.Lifetimes.Forget(rec.ID)
	e.Git.Forget(rec.ID)
	e.Commands.Forget(rec.ID)
	e.budgets.Forget(rec.ID)
	e.journals.Forget(rec.ID)
	e.Upkeep.Forget(rec.ID)
	dir := e.sandboxDir(rec.ID)
	trash := dir + ".removed"
	if err := vfs.Rename(e.FS, dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.Logger.Warn("could not remove the directory of a removed sandbox; gc will remove it", "dir", dir, "err", err)
	}
	if e.whole(rec.ID, rec.Name) != nil { // includes parts that a capture had moved
		if err := e.unadoptAll(ctx, rec.ID); err != nil {
			e.Logger.Warn("could not undo the moves of a failed capture; the next daemon will try "+
				"again", "sandbox", rec.ID, "err", err)
		}
	}
	// The client may need the disk space, so wait for the deletion unless the client disconnects.
	done := make(chan struct{})
	e.bg.Go(func() error {
		defer close(done)
		if box != nil {
			select { // the mount keeps the files in use
			case <-box.Gone():
			case <-e.bgCtx.Done():
			}
		}
		e.disk.drop(filepath.Join(trash, liveDir))
		e.Upkeep.RemoveTree(e.bgCtx, trash)
		e.Upkeep.Discard(e.bgCtx, unused)
		return nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return nil
}
