//go:build linux

package engine

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ignored"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// home completes or reverts operations that a crash interrupted, before anything else runs. After a reboot
// it also removes layers that were captured but never finalized: such a layer may be torn, and is never
// trusted.
func (e recovery) home(ctx context.Context) error {
	if err := vfs.MkdirAll(e.FS, filepath.Join(e.Home, "sandboxes")); err != nil {
		return err
	}
	if err := e.Images.DropUnstored(); err != nil {
		return err
	}
	if err := e.findMounted(ctx); err != nil {
		return err
	}
	boot, err := e.DB.Setting(ctx, settingBoot)
	if err != nil {
		return err
	}
	if err := e.masks.Sweep(ctx, boot != e.BootID); err != nil {
		return err
	}
	if err := e.unadoptAll(ctx, ""); err != nil {
		return err
	}
	if err := e.distrustUnfinalized(ctx); err != nil {
		return err
	}
	if err := e.dropUnrecorded(ctx); err != nil {
		return err
	}
	if err := e.Book.Reconcile(ctx); fault.Is(err, fault.NoSpace) {
		e.Logger.Error("disk full: will reconcile the ledger when there is space again", "err", err)
	} else if err != nil {
		return err
	}
	return e.sweep(ctx)
}

// settingBoot names the setting with the boot id of when the home was last opened.
const settingBoot = "boot_id"

// distrustUnfinalized handles a power loss. Snapshots whose layer was not finalized leave the history;
// their layers, and live roots that start from them, are moved to lost/ for inspection. Heads
// move to the nearest snapshot that is left.
func (e recovery) distrustUnfinalized(ctx context.Context) error {
	last, err := e.DB.Setting(ctx, settingBoot)
	if err != nil {
		return err
	}
	if last == e.BootID {
		return nil
	}
	if last != "" {
		unfinalized, err := e.DB.UnfinalizedLayers(ctx)
		if err != nil {
			return err
		}
		if err := e.recordLost(ctx, func() error {
			for _, l := range unfinalized {
				if err := e.loseLayer(ctx, l.ID); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return e.DB.SetSetting(ctx, settingBoot, e.BootID)
}

// recordLost calls lose, and records the snapshots that it removes.
func (e recovery) recordLost(ctx context.Context, lose func() error) error {
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	before := make([]timeline.History, len(recs))
	for i := range recs {
		if before[i], err = e.DB.History(ctx, recs[i].ID); err != nil {
			return err
		}
	}
	if err := lose(); err != nil {
		return err
	}
	for i, h := range before {
		own := slices.DeleteFunc(slices.Sorted(maps.Keys(h.Snapshots)),
			func(id timeline.SnapshotID) bool { return h.Snapshots[id].Sandbox != recs[i].ID })
		gone, err := e.Book.Gone(ctx, own)
		if err != nil {
			return err
		}
		e.Book.Note(ctx, &recs[i], audit.Dropped("lost", gone)...)
	}
	return nil
}

// loseLayer moves the files of a layer to lost/ before it removes the record. In the other order, a crash in between
// would leave the files as garbage.
func (e recovery) loseLayer(ctx context.Context, id timeline.LayerID) error {
	aside := filepath.Join(e.Home, "lost", string(id))
	if err := vfs.MkdirAll(e.FS, filepath.Dir(aside)); err != nil {
		return err
	}
	err := vfs.Rename(e.FS, filepath.Dir(e.Layers.Dir(id)), aside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lost, err := e.DB.LoseLayer(ctx, id)
	if err != nil {
		return err
	}
	for _, rec := range lost {
		// A head that did not move may still have a new generation.
		if sb, err := e.DB.Sandbox(ctx, rec.Name); err == nil {
			e.indexes.drop(sb.ID, rec.Head)
		}
		e.Logger.Warn("lost a snapshot that was not yet synced when the power failed; the sandbox is at the one before it",
			"sandbox", rec.Name, "head", rec.Head, "kept", aside)
	}
	return nil
}

// dropUnrecorded deletes layers that were being written when the daemon died.
func (e recovery) dropUnrecorded(ctx context.Context) error {
	onDisk, err := e.Layers.List(ctx)
	if err != nil {
		return err
	}
	if e.DB.Made() && len(onDisk) > 0 {
		return fault.New(fault.Corrupt, "the database is missing, but %d layers exist", len(onDisk)).
			WithHint("restore coppice.db from a backup; or, to discard the layers, move %s away",
				filepath.Join(e.Home, "layers"))
	}
	dead, err := upkeepCore{e.Engine}.Garbage(ctx, nil)
	if err != nil {
		return err
	}
	for _, id := range dead {
		if err := e.Layers.Remove(ctx, id); err != nil {
			if ctx.Err() != nil {
				return err
			}
			e.Logger.Warn("could not remove an unfinished layer; gc will remove it", "layer", id, "err", err)
		}
	}
	return nil
}

// sweep deletes the remains of removed sandboxes, of earlier generations and of earlier imports.
func (e *Engine) sweep(ctx context.Context) error {
	// The directories are listed first, because a sandbox has its record before it has a directory.
	root := filepath.Join(e.Home, "sandboxes")
	dirs, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	byID := make(map[string]*meta.Sandbox, len(recs))
	for i := range recs {
		byID[string(recs[i].ID)] = &recs[i]
	}
	for _, d := range dirs {
		rec := byID[d.Name()]
		if rec == nil {
			e.disk.drop(filepath.Join(root, d.Name(), liveDir))
			if err := e.discard(ctx, filepath.Join(root, d.Name())); err != nil {
				return err
			}
			continue
		}
		if err := e.sweepGenerations(ctx, rec); err != nil {
			return err
		}
	}
	if err := e.masks.SweepIdentities(ctx); err != nil {
		return err
	}
	return e.Bases.Sweep(ctx)
}

func (e *Engine) sweepGenerations(ctx context.Context, rec *meta.Sandbox) error {
	live := filepath.Join(e.sandboxDir(rec.ID), liveDir)
	gens, err := os.ReadDir(live)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, g := range gens {
		if n, err := strconv.Atoi(strings.TrimSuffix(g.Name(), ".tmp")); err == nil && n >= rec.Gen {
			continue
		}
		if g.Name() == ignored.DirName {
			continue // it belongs to no generation
		}
		if err := e.discard(ctx, filepath.Join(live, g.Name())); err != nil {
			return err
		}
	}
	return nil
}

// discard deletes a leftover. If that fails, it logs the error and leaves the directory to the next garbage
// collection: it takes disk space, but must not make the home unusable. The only error returned is that of ctx.
func (e *Engine) discard(ctx context.Context, dir string) error {
	err := e.Layers.RemoveTree(ctx, dir)
	if err != nil && ctx.Err() == nil {
		e.Logger.Warn("could not remove leftover files; gc will remove them", "dir", dir, "err", err)
	}
	return ctx.Err()
}
