//go:build linux

package engine

import (
	"errors"
	"io/fs"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// The index of the last capture is kept in a file that is named after its
// snapshot, written before the snapshot is acknowledged. One that is missing or
// torn costs a larger layer, never a wrong one.

// writeIndex puts an index in its place, whole or not at all.
func (e *Engine) writeIndex(id timeline.SandboxID, snap timeline.SnapshotID, ix *layer.Index) error {
	return fault.Wrap(vfs.WriteUnsynced(e.FS, e.indexPath(id, snap), func(w *vfs.Writer) error {
		_, err := ix.WriteTo(w)
		return err
	}), "write index")
}

// presentIndex is the index of the live root, which is read from the disk once; nil: unknown.
func (e *Engine) presentIndex(s *held, rec *meta.Sandbox) *layer.Index {
	if s.index == nil && !s.read {
		s.read = true
		ix, err := loadIndex(e.indexPath(s.ID, rec.Head))
		switch {
		case err == nil:
			s.index, s.of = ix, rec.Head
		case !errors.Is(err, fs.ErrNotExist):
			e.Logger.Warn("index is rebuilt", "sandbox", s.ID, "err", err)
		}
	}
	return s.index
}

func loadIndex(path string) (*layer.Index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return layer.ReadIndex(f)
}

// dropIndex removes the index of a snapshot that is no longer HEAD.
func (e *Engine) dropIndex(id timeline.SandboxID, snap timeline.SnapshotID) {
	if err := vfs.Remove(e.FS, e.indexPath(id, snap)); err != nil {
		e.Logger.Warn("old index stays", "sandbox", id, "err", err)
	}
}

// lostIndex says what to compare with when there is no index: an overlay's upper
// holds everything since the snapshot it stands on; a plain tree is taken whole.
func (e *Engine) lostIndex(drv rootfs.Driver, rec *meta.Sandbox) (*layer.Index, timeline.SnapshotID) {
	if drv.Plain() {
		return nil, ""
	}
	return new(layer.Index), rec.MountTop
}
