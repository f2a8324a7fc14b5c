//go:build linux

package upkeep

import (
	"context"
	"errors"
	"io/fs"

	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// DeleteSnapshot removes a snapshot from the history. Its changes are merged into its children, whose files do not
// change. It returns the head.
func (u *Upkeep) DeleteSnapshot(ctx context.Context, name, ref string) (head string, err error) {
	r := removal{what: "deleting " + ref, why: "asked", drop: u.config.DB.DeleteSnapshot}
	if r.of, r.id, err = u.chosen(ctx, name, ref, r.what); err != nil {
		return "", err
	}
	r.may = func(ctx context.Context, rec *meta.Sandbox, h *timeline.History) error {
		return u.deletable(ctx, rec, h, r.id)
	}
	rec, snap, err := u.remove(ctx, r)
	if err != nil {
		return "", err
	}
	u.config.Feed.Emit(events.Dropped(&rec, snap, ""))
	u.MayBeDeep(rec.Head)
	return string(rec.Head), nil
}

// chosen returns the snapshot that a request for a removal names, if it can be removed now.
func (u *Upkeep) chosen(
	ctx context.Context, name, ref, what string,
) (of timeline.SandboxID, id timeline.SnapshotID, err error) {
	release, rec, err := u.config.Sandboxes.Acquire(ctx, name, what)
	if err != nil {
		return "", "", err
	}
	defer release()
	h, err := u.config.DB.History(ctx, rec.ID)
	if err != nil {
		return "", "", err
	}
	if id, err = h.Resolve(ref, u.config.Now()); err != nil {
		return "", "", err
	}
	return rec.ID, id, u.deletable(ctx, &rec, &h, id)
}

// deletable returns why a snapshot cannot be removed; nil if it can.
func (u *Upkeep) deletable(ctx context.Context, rec *meta.Sandbox, h *timeline.History, id timeline.SnapshotID) error {
	snap := h.Snapshots[id]
	switch {
	case id == h.Head:
		return fault.New(fault.Conflict, "cannot delete snapshot %s: it is HEAD of sandbox %s", id, rec.Name).
			WithHint("rewind to another snapshot first: coppice rewind %s REF", rec.Name)
	case snap.Sandbox != rec.ID:
		return fault.New(fault.Conflict, "cannot delete snapshot %s: it belongs to another sandbox", id).
			WithHint("delete it there; it uses no space of this sandbox")
	case snap.Cause == timeline.CauseImport || snap.Cause == timeline.CauseFork:
		return fault.New(fault.Conflict, "cannot delete snapshot %s: it is the first one of sandbox %s", id, rec.Name)
	}
	user, err := u.config.DB.At(ctx, id)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case user.Head == id:
		return fault.New(fault.Conflict, "cannot delete snapshot %s: it is HEAD of sandbox %s", id, user.Name).
			WithHint("rewind to another snapshot first: coppice rewind %s REF", user.Name)
	}
	return fault.New(fault.Conflict, "the live root of sandbox %s is based on snapshot %s", user.Name, id).
		WithHint("start a new one from HEAD: coppice rewind %s HEAD", user.Name)
}

// dropper removes a snapshot from the database. led are the routes that replace those that ended in it; unused are
// the layers that nothing refers to any more.
type dropper func(ctx context.Context, id timeline.SnapshotID, led []timeline.Route,
	finalized ...meta.Layer) (unused []timeline.LayerID, err error)

// Discard deletes layers that have no record any more. Those that are mounted or cannot be deleted are left for
// garbage collection. Before it deletes them, it makes the records that no longer refer to them durable. The caller
// may hold any lock.
func (u *Upkeep) Discard(ctx context.Context, ids []timeline.LayerID) {
	if len(ids) == 0 {
		return
	}
	u.CancelFinalize(ids)
	if err := u.config.DB.Flush(); err != nil {
		u.config.Log.Warn("could not remove layers; gc will remove them", "layers", ids, "err", err)
		return
	}
	used := u.config.Stacks.Mounted()
	for _, id := range ids {
		if used[id] {
			continue
		}
		if err := u.config.Layers.Remove(ctx, id); err != nil {
			u.config.Log.Warn("could not remove leftover files; gc will remove them", "layer", id, "err", err)
		}
	}
}

// Retire deletes, in the background, a generation of a live root whose changes are all captured, once the record of
// the next generation is durable. The caller may hold any lock.
func (u *Upkeep) Retire(dir string) {
	u.config.Go(func(ctx context.Context) {
		if err := u.Secure(ctx); err != nil {
			u.config.Log.Warn("could not remove leftover files; gc will remove them", "dir", dir, "err", err)
			return
		}
		u.RemoveTree(ctx, dir)
	})
}

// RemoveTree deletes a directory that nothing refers to any more. If that fails, it logs the error and leaves the
// directory for garbage collection. The caller may hold any lock.
func (u *Upkeep) RemoveTree(ctx context.Context, dir string) {
	if err := u.config.Layers.RemoveTree(ctx, dir); err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) {
		u.config.Log.Warn("could not remove leftover files; gc will remove them", "dir", dir, "err", err)
	}
}
