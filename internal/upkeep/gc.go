//go:build linux

package upkeep

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// GC frees what nothing refers to: snapshots of removed sandboxes that no sandbox descends from, a copy of the host
// that no sandbox is based on, layers without a record, leftover generations, and incomplete data that a crash left.
// Before that it removes the forks of ended tournaments, and the snapshots that the request's rules do not keep.
func (u *Upkeep) GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error) {
	res, err := u.collectGarbage(ctx, req, progress)
	if err != nil || req.DryRun {
		return res, err
	}
	return res, u.config.Sweeps.SweepImages(ctx, &res)
}

// collectGarbage is GC for everything but memory images.
func (u *Upkeep) collectGarbage(
	ctx context.Context, req wire.GCRequest, progress func(wire.Progress),
) (wire.GCResult, error) {
	res := wire.GCResult{DryRun: req.DryRun, Removed: []string{}}
	if err := checkRules(req); err != nil {
		return res, err
	}
	if err := u.dropForks(ctx, &res, progress); err != nil {
		return res, err
	}
	if err := u.retain(ctx, req, &res, progress); err != nil {
		return res, err
	}
	if err := u.config.Stacks.LetGo(ctx); err != nil {
		return res, err
	}
	if !req.DryRun {
		if err := u.config.Sweeps.SweepReferences(ctx); err != nil {
			return res, err
		}
	}
	if err := LockShape(ctx, u.shape); err != nil {
		return res, err
	}
	defer u.shape.Unlock()
	dead, err := u.config.DB.Unreferenced(ctx, bases.HostCopyKey)
	if err != nil {
		return res, err
	}
	for _, id := range dead.Snapshots {
		res.Removed = append(res.Removed, string(id))
	}
	garbage, err := u.config.Stacks.Garbage(ctx, dead.Layers)
	if err != nil {
		return res, err
	}
	for i, id := range garbage {
		n, err := u.config.Layers.Usage(ctx, id)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return res, err
		}
		res.Bytes += n
		res.Layers++
		progress(wire.Progress{Phase: "measure", Unit: "layers", Done: int64(i + 1), Total: int64(len(garbage))})
	}
	if req.DryRun {
		return res, nil
	}
	var cleared error // the records are removed even if it fails
	d := Dropped{Snapshots: dead.Snapshots, Reason: "unreferenced"}
	err = u.config.Recorder.Drop(ctx, d, func(ctx context.Context) error {
		if _, err := u.config.DB.DropUnreferenced(ctx, bases.HostCopyKey); err != nil {
			return err
		}
		cleared = u.clear(ctx, garbage, progress)
		return nil
	})
	return res, errors.Join(cleared, err)
}

// Unused returns the layers that GC would delete now, except those that become unused while GC runs, with forks of
// ended tournaments and live roots that are no longer mounted. It deletes nothing.
func (u *Upkeep) Unused(ctx context.Context) ([]timeline.LayerID, error) {
	u.shape.RLock()
	defer u.shape.RUnlock()
	dead, err := u.config.DB.Unreferenced(ctx, bases.HostCopyKey)
	if err != nil {
		return nil, err
	}
	return u.config.Stacks.Garbage(ctx, dead.Layers)
}

// clear deletes layers that have no record any more, and other leftovers.
func (u *Upkeep) clear(ctx context.Context, garbage []timeline.LayerID, progress func(wire.Progress)) error {
	if err := u.config.DB.Flush(); err != nil {
		return err
	}
	u.CancelFinalize(garbage)
	for i, id := range garbage {
		if err := u.config.Layers.Remove(ctx, id); err != nil {
			return err
		}
		progress(wire.Progress{Phase: "remove", Unit: "layers", Done: int64(i + 1), Total: int64(len(garbage))})
	}
	return u.config.Sweeps.SweepLeftovers(ctx)
}

// dropForks removes the forks of tournaments that have ended, also by a crash, and adds them to res. Forks with
// running commands are left.
func (u *Upkeep) dropForks(ctx context.Context, res *wire.GCResult, progress func(wire.Progress)) error {
	recs, err := u.config.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	recs = slices.DeleteFunc(recs, func(r meta.Sandbox) bool {
		return r.Tournament == "" || u.config.Sandboxes.Playing(r.Tournament) || u.config.Sandboxes.Whole(r.ID) != nil
	})
	var mu sync.Mutex // guards res and progress
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(limit.Removals)
	for i := range recs {
		g.Go(func() error {
			freed, gone, err := u.dropFork(ctx, &recs[i], res.DryRun)
			if err != nil || !gone {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			res.Forks = append(res.Forks, recs[i].Name)
			res.Bytes += freed
			progress(wire.Progress{Phase: "forks", Done: int64(len(res.Forks)), Total: int64(len(recs))})
			return nil
		})
	}
	err = g.Wait()
	slices.Sort(res.Forks)
	return err
}

// dropFork removes a fork unless it is in use, and returns how many bytes that frees.
func (u *Upkeep) dropFork(ctx context.Context, rec *meta.Sandbox, dry bool) (freed int64, gone bool, err error) {
	use, err := u.config.DB.Usage(ctx, rec.ID)
	if err != nil {
		return 0, false, err
	}
	if dry {
		return use.Own, u.config.Sandboxes.Idle(ctx, rec), nil
	}
	err = u.config.Sandboxes.Remove(ctx, rec.ID)
	switch {
	case fault.Is(err, fault.Conflict), fault.Is(err, fault.NotFound), fault.Is(err, fault.Unavailable):
		return 0, false, nil // in use, removed meanwhile, or its keeper does not answer
	case err != nil:
		return 0, false, fault.Wrap(err, "remove sandbox %s", rec.Name)
	}
	return use.Own, true, nil
}

// maxSpans bounds the number of hours, days or weeks in a rule.
const maxSpans = 10_000

// checkRules returns an error if the request's rules are invalid.
func checkRules(req wire.GCRequest) error {
	k := req.Keep
	for _, n := range []int64{int64(k.Last), k.WithinMS, int64(k.Hourly), int64(k.Daily), int64(k.Weekly)} {
		if n < 0 {
			return fault.New(fault.Invalid, "invalid retention rule: must not be negative").
				WithHint("see: coppice system gc --help")
		}
	}
	if !limit.InLife(k.WithinMS) {
		return fault.New(fault.Invalid, "invalid retention rule: %d ms; the limit is 100 years", k.WithinMS).
			WithHint("use a shorter time: coppice system gc --keep-within TIME")
	}
	if max(k.Hourly, k.Daily, k.Weekly) > maxSpans {
		return fault.New(fault.Invalid, "invalid retention rule: the limit is %d", maxSpans).
			WithHint("to keep all snapshots of a period: coppice system gc --keep-within TIME")
	}
	if k == (wire.Keep{}) && len(req.Sandboxes) > 0 {
		return fault.New(fault.Invalid, "naming sandboxes requires a retention rule").
			WithHint("add a rule, for example: coppice system gc --keep-last 20 --keep-daily 7 NAME")
	}
	return nil
}

// retain removes the snapshots that the request's rules do not keep, and adds them to res. Without a rule it
// removes nothing.
func (u *Upkeep) retain(
	ctx context.Context, req wire.GCRequest, res *wire.GCResult, progress func(wire.Progress),
) error {
	k := req.Keep
	if k == (wire.Keep{}) {
		return nil
	}
	names := req.Sandboxes
	if len(names) == 0 {
		recs, err := u.config.DB.Sandboxes(ctx)
		if err != nil {
			return err
		}
		for i := range recs {
			if u.config.Sandboxes.Whole(recs[i].ID) == nil { // no snapshot can be removed from the others
				names = append(names, recs[i].Name)
			}
		}
	}
	for i, name := range names {
		progress(wire.Progress{Phase: "sandboxes", Done: int64(i), Total: int64(len(names))})
		err := u.retainIn(ctx, name, k, req.DryRun, res, progress)
		if fault.Is(err, fault.NotFound) && len(req.Sandboxes) == 0 {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// retainIn removes the snapshots of one sandbox that the rules do not keep.
func (u *Upkeep) retainIn(
	ctx context.Context, name string, k wire.Keep, dry bool, res *wire.GCResult, progress func(wire.Progress),
) error {
	rec, h, err := u.find(ctx, name)
	if err != nil {
		return err
	}
	drop, err := u.surplus(ctx, &rec, h, k)
	if err != nil || len(drop) == 0 {
		return err
	}
	if !dry {
		if h, drop, err = u.surplusNow(ctx, rec.ID, k); err != nil {
			return err
		}
		defer u.MayBeDeep(h.Head)
	}
	nodes, err := u.config.Sandboxes.Nodes(ctx, h)
	if err != nil {
		return err
	}
	var gone []wire.Snapshot
	for i, id := range drop {
		if !dry {
			progress(wire.Progress{Phase: "drop", Unit: "snapshots", Done: int64(i), Total: int64(len(drop))})
			_, _, err := u.remove(ctx, removal{of: rec.ID, id: id, what: "deleting snapshots", why: retention,
				drop: u.config.DB.DropSnapshot})
			if fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) {
				continue // forked or tagged, or removed, just now
			}
			if err != nil {
				return fault.Wrap(err, "delete snapshot %s of sandbox %s", id, name)
			}
			u.config.Feed.Emit(events.Dropped(&rec, h.Snapshots[id], retention))
		}
		gone = append(gone, nodes[id])
	}
	slices.SortStableFunc(gone, func(a, b wire.Snapshot) int { return a.Created.Compare(b.Created) })
	for _, n := range gone {
		res.Removed = append(res.Removed, n.ID)
	}
	res.Dropped = append(res.Dropped, gone...)
	return nil
}

// surplusNow is surplus once nothing else is done with the sandbox, so that what is being captured is in the history.
func (u *Upkeep) surplusNow(
	ctx context.Context, id timeline.SandboxID, k wire.Keep,
) (*timeline.History, []timeline.SnapshotID, error) {
	release, rec, err := u.config.Sandboxes.Acquire(ctx, string(id), "deleting snapshots")
	if err != nil {
		return nil, nil, err
	}
	defer release()
	h, err := u.config.DB.History(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	drop, err := u.surplus(ctx, &rec, &h, k)
	return &h, drop, err
}

// surplus returns the snapshots that the rules do not keep, in the order of removal.
func (u *Upkeep) surplus(
	ctx context.Context, rec *meta.Sandbox, h *timeline.History, k wire.Keep,
) ([]timeline.SnapshotID, error) {
	held, err := u.config.DB.Held(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	for _, id := range h.Newest(k.Last) {
		held[id] = true
	}
	policy := timeline.Sparse(time.Duration(k.WithinMS)*time.Millisecond, k.Hourly, k.Daily, k.Weekly)
	drop := timeline.Retain(h, policy, u.config.Now(), func(id timeline.SnapshotID) bool { return held[id] })
	return byHalves(drop), nil
}

// byHalves puts every second one first, then every fourth, and so on. A removed snapshot is merged into the next one.
// In the order of time, the last one would be merged with all earlier ones again and again.
func byHalves(ids []timeline.SnapshotID) []timeline.SnapshotID {
	out := make([]timeline.SnapshotID, 0, len(ids))
	for step := range bits.Len(uint(len(ids))) {
		for i := 1 << step; i <= len(ids); i += 2 << step {
			out = append(out, ids[i-1])
		}
	}
	return out
}
