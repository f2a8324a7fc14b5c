//go:build linux

package upkeep

import (
	"context"
	"errors"
	"reflect"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// removal is the removal of one snapshot on request.
type removal struct {
	of   timeline.SandboxID
	id   timeline.SnapshotID
	what string // names the operation to other callers of Acquire
	why  string // the recorded reason
	// may returns why the snapshot must be kept; nil: only drop decides. The sandbox's lock is held.
	may  func(ctx context.Context, rec *meta.Sandbox, h *timeline.History) error
	drop dropper
}

// removeTries is how often a removal begins again because the history has changed meanwhile.
const removeTries = 5

// errChanged says that the neighbors of a snapshot are not those that a removal was prepared for.
var errChanged = errors.New("the neighbors of the snapshot have changed")

// remove removes a snapshot: every route that ended in it is extended to the next one below, through a merged layer if
// both changed something. Merging takes as long as a layer has files, so that remove holds no lock meanwhile that
// captures and commands need. It takes the locks for one transaction, and begins again if the history has changed.
func (u *Upkeep) remove(ctx context.Context, r removal) (rec meta.Sandbox, snap timeline.Snapshot, err error) {
	for range removeTries {
		c, err := u.prepareCut(ctx, []timeline.SnapshotID{r.id})
		if err != nil {
			return rec, snap, err
		}
		rec, snap, err = u.removeCut(ctx, r, c)
		c.made()
		if !errors.Is(err, errChanged) {
			return rec, snap, err
		}
	}
	return rec, snap, fault.New(fault.Conflict, "the history around snapshot %s changes all the time", r.id).
		WithHint("try again later")
}

// removeCut removes the snapshot that was prepared, with its record, and returns it. Without an error, or if only the
// record could not be written yet, the snapshot is removed. It returns errChanged if the history has changed.
func (u *Upkeep) removeCut(
	ctx context.Context, r removal, c cutting,
) (rec meta.Sandbox, snap timeline.Snapshot, err error) {
	var unused []timeline.LayerID // deleted without the locks
	for _, l := range c.finalized {
		unused = append(unused, l.ID)
	}
	defer func() { u.Discard(ctx, unused) }()
	release, rec, err := u.config.Sandboxes.Acquire(ctx, string(r.of), r.what)
	if err != nil {
		return rec, snap, err
	}
	defer release()
	if err := LockShape(ctx, u.shape); err != nil {
		return rec, snap, err
	}
	defer u.shape.Unlock()
	h, err := u.config.DB.History(ctx, rec.ID)
	if err != nil {
		return rec, snap, err
	}
	snap, there := h.Snapshots[r.id]
	if !there {
		return rec, snap, fault.New(fault.NotFound, "snapshot %s has been removed meanwhile", r.id)
	}
	if r.may != nil {
		if err := r.may(ctx, &rec, &h); err != nil {
			return rec, snap, err
		}
	}
	now, err := u.cuts(ctx, c.run)
	if err != nil {
		return rec, snap, err
	}
	if !reflect.DeepEqual(now, c.seen) {
		return rec, snap, errChanged
	}
	d := Dropped{Of: &rec, Snapshots: c.run, Reason: r.why}
	err = u.config.Recorder.Drop(ctx, d, func(ctx context.Context) error {
		gone, err := r.drop(ctx, r.id, c.led[0], c.finalized...)
		if err == nil {
			unused = gone
			u.chainsChanged()
		}
		return err
	})
	return rec, snap, err
}
