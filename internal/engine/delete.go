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
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// DeleteSnapshot drops a snapshot from the history. What it changed is merged
// into its children, whose roots stay what they were. It gives the head.
func (e *Engine) DeleteSnapshot(ctx context.Context, name, ref string) (head string, err error) {
	s, rec, err := e.acquire(ctx, name, "deleting "+ref)
	if err != nil {
		return "", err
	}
	defer s.unlock(e)
	e.shape.Lock()
	defer e.shape.Unlock()
	h, err := e.history(ctx, &rec)
	if err != nil {
		return "", err
	}
	id, err := h.Resolve(ref, e.Now())
	if err != nil {
		return "", err
	}
	if err := e.deletable(ctx, &rec, h, id); err != nil {
		return "", err
	}
	if err := e.spliceTelling(ctx, &rec, id, "asked", e.DB.DeleteSnapshot); err != nil {
		return "", err
	}
	e.Feed.Emit(events.Dropped(&rec, h.Snapshots[id], ""))
	e.mayBeDeep(rec.Head)
	return string(rec.Head), nil
}

// deletable says why a snapshot must stay.
func (e *Engine) deletable(ctx context.Context, rec *meta.Sandbox, h *timeline.History, id timeline.SnapshotID) error {
	snap := h.Snapshots[id]
	switch {
	case id == h.Head:
		return fault.New(fault.Conflict, "snapshot %s is HEAD of sandbox %s", id, rec.Name).
			WithHint("go elsewhere first: coppice checkout %s REF", rec.Name)
	case snap.Sandbox != rec.ID:
		return fault.New(fault.Conflict, "snapshot %s was made in another sandbox, which shares it", id).
			WithHint("delete it there, or leave it: it costs this sandbox nothing")
	case snap.Cause == timeline.CauseImport || snap.Cause == timeline.CauseFork:
		return fault.New(fault.Conflict, "snapshot %s is the first one of sandbox %s", id, rec.Name)
	}
	user, err := e.DB.At(ctx, id)
	switch {
	case fault.Is(err, fault.NotFound):
		return nil
	case err != nil:
		return err
	case user.Head == id:
		return fault.New(fault.Conflict, "snapshot %s is HEAD of sandbox %s", id, user.Name).
			WithHint("go elsewhere first: coppice checkout %s REF", user.Name)
	}
	return fault.New(fault.Conflict, "the live root of sandbox %s stands on snapshot %s", user.Name, id).
		WithHint("begin a new one on its head: coppice checkout %s HEAD", user.Name)
}

// spliceTelling is splice, which is recorded before it returns.
func (e *Engine) spliceTelling(
	ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID, why string, drop dropper,
) error {
	d := e.debtOf(ctx, rec)
	d.Snapshots, d.Reason = []timeline.SnapshotID{id}, why
	pay, err := e.owe(ctx, d)
	if err != nil {
		return err
	}
	return pay(e.splice(ctx, id, drop))
}

// splice takes a snapshot out: every route that ended in it is led on to what
// lies below, through a merged copy where both changed something. drop takes it
// out of the database. The caller holds shape.
func (e *Engine) splice(ctx context.Context, id timeline.SnapshotID, drop dropper) (err error) {
	cut, err := e.DB.Cut(ctx, id)
	if err != nil {
		return err
	}
	var fresh []timeline.LayerID
	var sealed []meta.Layer
	var routes []timeline.Route
	defer func() {
		if err != nil {
			for _, l := range fresh {
				err = errors.Join(err, e.Layers.Remove(ctx, l))
			}
		}
	}()
	for _, r := range cut.Above {
		led := timeline.Route{Top: r.Top, Below: cut.Below, Layer: r.Layer}
		if cut.Own != nil {
			id, made, err := e.newLayer()
			if err != nil {
				return err
			}
			defer made()
			led.Layer = id
			fresh = append(fresh, led.Layer)
			if err := e.Layers.Merge(ctx, led.Layer, []timeline.LayerID{r.Layer, cut.Own.Layer}); err != nil {
				return fault.Wrap(err, "merge snapshot %s into %s", id, r.Top)
			}
			// What it takes the place of may be sealed, and is gone after this.
			got, err := e.Layers.Seal(ctx, led.Layer)
			if err != nil {
				return fault.Wrap(err, "merge snapshot %s into %s", id, r.Top)
			}
			sealed = append(sealed, meta.Layer{ID: led.Layer, Digest: got.Digest, DiffID: got.DiffID, Size: got.Size})
		}
		routes = append(routes, led)
	}
	unused, err := drop(ctx, id, routes, sealed...)
	if err != nil {
		return err
	}
	e.rerouted()
	e.removeLayers(ctx, unused)
	e.mu.Lock()
	clear(e.shallow)
	e.mu.Unlock()
	return nil
}

// dropper takes a snapshot out of the database, led being what its routes become;
// it gives the layers that are of no use any more.
type dropper func(ctx context.Context, id timeline.SnapshotID, led []timeline.Route,
	sealed ...meta.Layer) (unused []timeline.LayerID, err error)

// removeLayers deletes layers that have no record any more; what is mounted, and
// what fails, is left for gc. That they are not needed has to survive a power loss
// before they go.
func (e *Engine) removeLayers(ctx context.Context, ids []timeline.LayerID) {
	if len(ids) == 0 {
		return
	}
	e.notKept(ids)
	if err := e.DB.Flush(); err != nil {
		e.Logger.Warn("layers are left for gc", "layers", ids, "err", err)
		return
	}
	used := e.inUse()
	for _, id := range ids {
		if used[id] {
			continue
		}
		if err := e.Layers.Remove(ctx, id); err != nil {
			e.Logger.Warn("left for gc", "layer", id, "err", err)
		}
	}
}

// Remove deletes sandboxes. Snapshots that others descend from stay until gc
// finds that nothing needs them. It gives the names that were removed, also with
// an error.
func (e *Engine) Remove(ctx context.Context, names []string, force bool) (removed []string, err error) {
	for _, name := range names {
		if err := e.removeOne(ctx, name, force); err != nil {
			return removed, err
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// RemoveWithLedger is Remove for a sandbox whose records go as well, which is a record of
// the host. Of one that was removed before, which is named by its id, they go alone.
func (e *Engine) RemoveWithLedger(ctx context.Context, name string, force bool) error {
	id, _, err := e.Records.Whose(ctx, name)
	if err != nil {
		return err
	}
	if id == format.Host {
		return fault.New(fault.Invalid, "the records of the host stay").WithHint("name a sandbox")
	}
	if err := e.removeOne(ctx, string(id), force); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	err = e.Ledger.Remove(context.WithoutCancel(ctx), id)
	if fault.Is(err, fault.NotFound) {
		return nil // there never were any
	}
	return fault.Wrap(err, "remove the ledger of sandbox %s", name)
}

// removeOne removes a sandbox; with force, its processes end with it. It does nothing unless all of
// still are true of the sandbox when nobody else works on it any more.
func (e *Engine) removeOne(ctx context.Context, name string, force bool, still ...func(*meta.Sandbox) bool) error {
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
	if s.run != nil {
		s.run.stopped = true
	}
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
			return fault.New(fault.Conflict, "sandbox %s has %d running processes", rec.Name, n).
				WithHint("stop them with: coppice stop %s, or remove it all the same: coppice rm --force %s", rec.Name, rec.Name)
		}
		if err := e.stopBox(ctx, s, 0); err != nil {
			return err
		}
	}
	if e.journals.Has(rec.ID) {
		e.journals.CatchUp(ctx, rec.ID)
	}
	if err := s.awaitPrograms(ctx); err != nil {
		return err
	}
	e.endAll(ctx, s, &rec)
	d := e.debtOf(ctx, &rec)
	d.Removed = true
	pay, err := e.owe(ctx, d)
	if err != nil {
		return err
	}
	left, err := e.leaving(ctx, &rec)
	if err != nil {
		return pay(err)
	}
	e.shape.Lock()
	unused, err := e.DB.DeleteSandbox(ctx, rec.ID)
	e.shape.Unlock()
	left(err)
	if err != nil {
		return pay(err)
	}
	e.notKept(unused)
	e.Feed.Emit(events.About(&rec, wire.EventRemoved))
	e.mu.Lock()
	delete(e.boxes, rec.ID)
	delete(e.mounted, rec.ID)
	delete(e.uses, rec.ID)
	delete(e.masks, rec.ID)
	e.mu.Unlock()
	e.Git.Forget(rec.ID)
	e.budgets.Forget(rec.ID)
	e.journals.Forget(rec.ID)
	dir := e.sandboxDir(rec.ID)
	trash := dir + ".removed"
	if err := vfs.Rename(e.FS, dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.Logger.Warn("left for gc", "dir", dir, "err", err)
	}
	if e.whole(rec.ID, rec.Name) != nil { // what a capture had moved goes with it
		if err := e.unadoptAll(ctx, rec.ID); err != nil {
			e.Logger.Warn("left for the next daemon", "sandbox", rec.ID, "err", err)
		}
	}
	// Who removes a sandbox may need the room, so that is waited for; but not by
	// who does not wait.
	done := make(chan struct{})
	e.bg.Go(func() error {
		defer close(done)
		if box != nil {
			select { // its mount holds what is deleted
			case <-box.Gone():
			case <-e.bgCtx.Done():
			}
		}
		e.unlimit(filepath.Join(trash, liveDir))
		e.removeTree(trash)
		e.removeLayers(e.bgCtx, unused)
		return nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
	return pay(nil)
}
