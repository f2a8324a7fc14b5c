//go:build linux

package bases

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

// HostCopyKey is the key of the base that is a copy of the host.
const HostCopyKey = "host-copy"

// hostCopy finds or makes the copy of the host's system directories. If these have changed since, the differences
// become a layer above the existing copy, so that sandboxes keep the copy that they are based on.
func (b *Bases) hostCopy(ctx context.Context, progress func(wire.Progress)) (Base, error) {
	b.importing.Lock()
	defer b.importing.Unlock()
	fresh := meta.Base{Key: HostCopyKey, Label: HostCopyKey, Print: b.config.Host.Print()}
	have, err := b.config.Records.Base(ctx, HostCopyKey)
	switch {
	case err == nil && have.Print == fresh.Print:
		return Base{Base: have}, nil
	case err != nil && !fault.Is(err, fault.NotFound):
		return Base{}, err
	}
	opts, operr := b.config.Host.Import()
	if operr != nil {
		return Base{}, operr
	}
	opts.Progress = relay(progress)
	if err == nil {
		since, err := b.refreshable(ctx, have)
		if err != nil {
			return Base{}, err
		}
		if since != nil {
			now, err := b.refresh(ctx, have, fresh, since, opts)
			if err == nil || !b.collected(ctx, have) {
				return now, err
			}
		}
	}
	whole, err := b.importBase(ctx, fresh, func(id timeline.LayerID) (layer.Report, error) {
		return b.config.Layers.ImportDir(ctx, id, b.config.Host.Root(), opts)
	})
	if err != nil {
		return Base{}, err
	}
	return whole, b.sweepIndexes(ctx)
}

// collected reports whether garbage collection has removed a base in the meantime, which no sandbox was based on.
func (b *Bases) collected(ctx context.Context, have meta.Base) bool {
	now, err := b.config.Records.Base(ctx, have.Key)
	return fault.Is(err, fault.NotFound) || err == nil && now.Created.Before(have.Created)
}

// refreshable returns the index of a copy of the host; nil if a complete import is due. It is due if the index is
// missing, or if the refreshes have grown so much that it is worth freeing what they replaced, which happens when
// nothing is based on the old copy any more.
func (b *Bases) refreshable(ctx context.Context, have meta.Base) (*layer.Index, error) {
	whole, since, err := b.config.Records.Grown(ctx, have.Top)
	if err != nil || since > whole/2 {
		return nil, err
	}
	ix, err := b.readIndex(have.Top)
	if err != nil {
		b.config.Log.Warn("importing the whole host again: the index of its copy is missing", "base", have.ID, "err", err)
		return nil, nil
	}
	return ix, nil
}

// refresh brings a copy of the host up to date. The caller holds importing.
func (b *Bases) refresh(
	ctx context.Context, have, fresh meta.Base, since *layer.Index, opts layer.ImportOptions,
) (Base, error) {
	below, err := b.config.Stacks.Dirs(ctx, have.Top)
	if err != nil {
		return Base{}, err
	}
	stack := rootspec.Stack{Layers: below}
	id, made, err := b.config.Stacks.NewLayer()
	if err != nil {
		return Base{}, err
	}
	defer made()
	got, err := b.config.Layers.Refresh(ctx, id, b.config.Host.Root(), since, b.config.Layers.View(stack), opts)
	if err != nil {
		return Base{}, err
	}
	now := Base{Base: have, Warnings: warnings(got.Report)}
	if got.Empty {
		// Both indexes fit the base; a difference between them does not matter.
		if err := b.writeIndex(have.Top, got.Index); err != nil {
			return Base{}, err
		}
		now.Print = fresh.Print
		err = b.config.Records.SetBasePrint(ctx, have.ID, fresh.Print)
	} else {
		fresh.Parent = have.Top
		if now, err = b.Add(ctx, fresh, id, got.Report); err == nil {
			err = b.sweepIndexes(ctx)
		}
	}
	if err != nil {
		return Base{}, err
	}
	paths := "paths"
	if got.Entries == 1 {
		paths = "path"
	}
	now.Notes = append(now.Notes, fmt.Sprintf("refreshed the copy of the host: %d %s changed", got.Entries, paths))
	return now, nil
}

// The index of the copy of the host is in a file named after the base's snapshot. A missing or torn index costs a
// complete import.

// Dir returns the directory of the indexes.
func (b *Bases) Dir() string { return filepath.Join(b.config.Home, "bases") }

func (b *Bases) indexPath(top timeline.SnapshotID) string {
	return filepath.Join(b.Dir(), "index."+string(top))
}

// writeIndex stores an index atomically.
func (b *Bases) writeIndex(top timeline.SnapshotID, ix *layer.Index) error {
	if err := vfs.MkdirAll(b.config.FS, b.Dir()); err != nil {
		return fault.Wrap(err, "write index")
	}
	return fault.Wrap(vfs.WriteUnsynced(b.config.FS, b.indexPath(top), func(w *vfs.Writer) error {
		_, err := ix.WriteTo(w)
		return err
	}), "write index")
}

func (b *Bases) readIndex(top timeline.SnapshotID) (*layer.Index, error) {
	f, err := os.Open(b.indexPath(top))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return layer.ReadIndex(f)
}

// Sweep removes every index except that of the current copy. It does nothing during an import, which sweeps itself.
// It does not wait, and the caller may hold any lock except Importing.
func (b *Bases) Sweep(ctx context.Context) error {
	if !b.importing.TryLock() {
		return nil
	}
	defer b.importing.Unlock()
	return b.sweepIndexes(ctx)
}

// sweepIndexes is Sweep. The caller holds importing.
func (b *Bases) sweepIndexes(ctx context.Context) error {
	files, err := os.ReadDir(b.Dir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	have, err := b.config.Records.Base(ctx, HostCopyKey)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	keep := filepath.Base(b.indexPath(have.Top))
	for _, f := range files {
		if f.Name() == keep {
			continue
		}
		if err := os.RemoveAll(filepath.Join(b.Dir(), f.Name())); err != nil {
			return err
		}
	}
	return nil
}
