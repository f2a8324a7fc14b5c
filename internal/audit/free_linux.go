//go:build linux

package audit

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// intentTell is the kind of the intent that is stored before a Removal, and ends after its records.
const intentTell = "tell"

// Removal describes what is removed to free space. It is recorded after the removal.
type Removal struct {
	Sandbox   timeline.SandboxID    `json:"sandbox"` // or format.Host
	Name      string                `json:"name"`
	Policy    string                `json:"policy,omitempty"`
	Tier      string                `json:"tier,omitempty"`
	Removed   bool                  `json:"removed,omitempty"` // the sandbox is removed
	Snapshots []timeline.SnapshotID `json:"snapshots,omitempty"`
	Reason    string                `json:"reason,omitempty"` // of Snapshots
	// Lost counts what could not be recorded before the sandbox was removed.
	Lost []format.Lost `json:"lost,omitempty"`
}

// RemovalOf returns a Removal for a sandbox, which removes nothing yet.
func (b *Book) RemovalOf(ctx context.Context, rec *meta.Sandbox) Removal {
	d := b.Drafts(ctx, rec, Statement{})[0]
	return Removal{Sandbox: rec.ID, Name: rec.Name, Policy: d.Policy, Tier: d.Tier}
}

// Dropped returns the statements about the removal of snapshots.
func Dropped(reason string, gone []timeline.SnapshotID) (all []Statement) {
	for part := range slices.Chunk(gone, limit.RecordIDs) {
		d := &format.Drop{Reason: reason}
		for _, id := range part {
			d.Snapshots = append(d.Snapshots, string(id))
		}
		all = append(all, ByDaemon(d)...)
	}
	return all
}

func (r Removal) drafts() (out []ledger.Draft) {
	all := Dropped(r.Reason, r.Snapshots)
	if r.Removed {
		for i := range r.Lost {
			all = append(all, ByDaemon(&r.Lost[i])...)
		}
		all = append(all, ByDaemon(&format.Delete{Sandbox: string(r.Sandbox)})...)
	}
	for _, s := range all {
		out = append(out, ledger.Draft{Sandbox: format.Sandbox(r.Sandbox), Name: r.Name, Observer: s.By,
			Policy: r.Policy, Tier: r.Tier, Body: s.Body})
	}
	return out
}

// Free frees disk space. It is Do in the other order, so that a full disk, on which nothing can be recorded, does not
// prevent it: it calls free, and writes the records before it returns. An intent to write them is stored before, so
// that a crash in between loses no record.
func (b *Book) Free(ctx context.Context, r Removal, free func(context.Context) error) error {
	if !r.Removed && len(r.Snapshots) == 0 {
		return free(ctx)
	}
	intent, err := b.config.Store.BeginIntent(ctx, intentTell, r)
	if err != nil {
		return err
	}
	err = free(ctx)
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		if _, err = b.Append(ctx, r.drafts()...); err != nil {
			return fault.Wrap(err, "the operation is done; it will be recorded when there is space again")
		}
	}
	if eerr := b.config.Store.EndIntent(ctx, intent); eerr != nil {
		b.config.Logger.Warn("an operation may be recorded twice", "sandbox", r.Name, "err", eerr)
	}
	return err
}

// recordFreed records removals from before a crash that were not recorded.
func (b *Book) recordFreed(ctx context.Context) error {
	all, err := b.config.Store.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range all {
		if in.Kind != intentTell {
			continue
		}
		var r Removal
		if err := in.Decode(&r); err != nil {
			return err
		}
		if err := b.keepTaken(ctx, &r); err != nil {
			return err
		}
		// The ledger may have been removed meanwhile; then nothing can be recorded in it.
		if _, err := b.Append(ctx, r.drafts()...); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if err := b.config.Store.EndIntent(ctx, in.ID); err != nil {
			return err
		}
	}
	return nil
}

// keepTaken reduces a Removal to what was actually removed.
func (b *Book) keepTaken(ctx context.Context, r *Removal) error {
	if r.Removed {
		_, err := b.config.Store.Sandbox(ctx, string(r.Sandbox))
		if r.Removed = fault.Is(err, fault.NotFound); err != nil && !r.Removed {
			return err
		}
	}
	var err error
	r.Snapshots, err = b.Gone(ctx, r.Snapshots)
	return err
}

// Gone returns the snapshots among all that are in no history.
func (b *Book) Gone(ctx context.Context, all []timeline.SnapshotID) (gone []timeline.SnapshotID, err error) {
	for _, id := range all {
		there, err := b.config.Store.HasSnapshot(ctx, id)
		if err != nil {
			return nil, err
		}
		if !there {
			gone = append(gone, id)
		}
	}
	return gone, nil
}
