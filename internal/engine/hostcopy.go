//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// hostCopyKey is what the base that is a copy of the host is found by.
const hostCopyKey = "host-copy"

// hostCopy finds or makes the copy of the host's system directories. When they
// changed since, what differs becomes a layer on the copy that is there, so that
// sandboxes keep the one that they stand on.
func (e *Engine) hostCopy(ctx context.Context, progress func(wire.Progress)) (base, error) {
	e.importing.Lock()
	defer e.importing.Unlock()
	fresh := meta.Base{Key: hostCopyKey, Label: hostCopyKey, Print: e.HostPrint()}
	have, err := e.DB.Base(ctx, hostCopyKey)
	switch {
	case err == nil && have.Print == fresh.Print:
		return base{Base: have}, nil
	case err != nil && !fault.Is(err, fault.NotFound):
		return base{}, err
	}
	opts, operr := e.HostImport()
	if operr != nil {
		return base{}, operr
	}
	opts.Progress = relay(progress)
	if err == nil {
		since, err := e.refreshable(ctx, have)
		if err != nil {
			return base{}, err
		}
		if since != nil {
			return e.refresh(ctx, have, fresh, since, opts)
		}
	}
	b, err := e.importBase(ctx, fresh, func(id timeline.LayerID) (layer.Report, error) {
		return e.Layers.ImportDir(ctx, id, e.HostRoot, opts)
	})
	if err != nil {
		return base{}, err
	}
	return b, e.sweepBases(ctx)
}

// refreshable gives the index of a copy of the host; nil when a whole import is
// due: there is no index, or the refreshes hold so much that what they replaced
// is worth being collected, which is when nothing stands on the old copy.
func (e *Engine) refreshable(ctx context.Context, have meta.Base) (*layer.Index, error) {
	whole, since, err := e.DB.Grown(ctx, have.Top)
	if err != nil || since > whole/2 {
		return nil, err
	}
	ix, err := e.readBaseIndex(have.Top)
	if err != nil {
		e.Logger.Warn("the host is imported as a whole: there is no index of its copy", "base", have.ID, "err", err)
		return nil, nil
	}
	return ix, nil
}

// refresh brings a copy of the host up to date. The caller holds importing.
func (e *Engine) refresh(
	ctx context.Context, have, fresh meta.Base, since *layer.Index, opts layer.ImportOptions,
) (base, error) {
	below, err := e.layersBelow(ctx, have.Top)
	if err != nil {
		return base{}, err
	}
	stack := rootspec.Stack{Layers: e.layerDirs(below)}
	id, made, err := e.newLayer()
	if err != nil {
		return base{}, err
	}
	defer made()
	got, err := e.Layers.Refresh(ctx, id, e.HostRoot, since, e.Layers.View(stack), opts)
	if err != nil {
		return base{}, err
	}
	b := base{Base: have, Warnings: warnings(got.Report)}
	if got.Empty {
		// Either index goes with the base: what they differ in is no difference.
		if err := e.writeBaseIndex(have.Top, got.Index); err != nil {
			return base{}, err
		}
		b.Print = fresh.Print
		err = e.DB.SetBasePrint(ctx, have.ID, fresh.Print)
	} else {
		fresh.Parent = have.Top
		if b, err = e.addBase(ctx, fresh, id, got.Report); err == nil {
			err = e.sweepBases(ctx)
		}
	}
	if err != nil {
		return base{}, err
	}
	paths := "paths"
	if got.Entries == 1 {
		paths = "path"
	}
	b.Notes = append(b.Notes, fmt.Sprintf("refreshed the copy of the host: %d %s changed", got.Entries, paths))
	return b, nil
}

// The index of the copy of the host is kept in a file that is named after the
// base's snapshot. One that is missing or torn costs a whole import.

func (e *Engine) basesDir() string { return filepath.Join(e.Home, "bases") }

func (e *Engine) baseIndexPath(top timeline.SnapshotID) string {
	return filepath.Join(e.basesDir(), "index."+string(top))
}

func (e *Engine) writeBaseIndex(top timeline.SnapshotID, ix *layer.Index) error {
	if err := vfs.MkdirAll(e.FS, e.basesDir()); err != nil {
		return fault.Wrap(err, "write index")
	}
	return e.saveIndex(e.baseIndexPath(top), ix)
}

func (e *Engine) readBaseIndex(top timeline.SnapshotID) (*layer.Index, error) {
	f, err := os.Open(e.baseIndexPath(top))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return layer.ReadIndex(f)
}

// sweepBases removes every index but that of the copy that will be found again.
// The caller holds importing.
func (e *Engine) sweepBases(ctx context.Context) error {
	files, err := os.ReadDir(e.basesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	have, err := e.DB.Base(ctx, hostCopyKey)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	keep := filepath.Base(e.baseIndexPath(have.Top))
	for _, f := range files {
		if f.Name() == keep {
			continue
		}
		if err := os.RemoveAll(filepath.Join(e.basesDir(), f.Name())); err != nil {
			return err
		}
	}
	return nil
}
