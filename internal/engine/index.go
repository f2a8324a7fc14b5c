//go:build linux

package engine

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// indexes stores the index of the last capture of each sandbox, in a file named after the snapshot of that capture,
// before the snapshot is acknowledged. A missing or torn index costs a larger layer, and never makes a wrong one.
type indexes struct {
	fs  vfs.FS
	dir func(timeline.SandboxID) string // of a sandbox
	log *slog.Logger
}

const indexPrefix = "index."

func (x indexes) path(id timeline.SandboxID, snap timeline.SnapshotID) string {
	return filepath.Join(x.dir(id), indexPrefix+string(snap))
}

// write stores an index atomically.
func (x indexes) write(id timeline.SandboxID, snap timeline.SnapshotID, ix *layer.Index) error {
	return fault.Wrap(vfs.WriteUnsynced(x.fs, x.path(id, snap), func(w *vfs.Writer) error {
		_, err := ix.WriteTo(w)
		return err
	}), "write index")
}

// present returns the index of the live root, which is read from the disk at most once; nil: unknown.
func (x indexes) present(s *held, rec *meta.Sandbox) *layer.Index {
	if s.index == nil && !s.read {
		s.read = true
		ix, err := loadIndex(x.path(s.ID, rec.Head))
		switch {
		case err == nil:
			s.index, s.of = ix, rec.Head
		case !errors.Is(err, fs.ErrNotExist):
			x.log.Warn("could not read the index; rebuilding it", "sandbox", s.ID, "err", err)
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

// drop removes the index of a snapshot that is no longer HEAD.
func (x indexes) drop(id timeline.SandboxID, snap timeline.SnapshotID) {
	if err := vfs.Remove(x.fs, x.path(id, snap)); err != nil {
		x.log.Warn("could not remove an old index", "sandbox", id, "err", err)
	}
}

// sweep removes all indexes of a sandbox except that of HEAD, which a killed daemon had left. A later generation on
// the same snapshot must not be compared with them.
func (x indexes) sweep(id timeline.SandboxID, head timeline.SnapshotID) error {
	files, err := os.ReadDir(x.dir(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		if name := f.Name(); strings.HasPrefix(name, indexPrefix) && name != indexPrefix+string(head) {
			err = errors.Join(err, vfs.Remove(x.fs, filepath.Join(x.dir(id), name)))
		}
	}
	return err
}

// lostIndex returns the index and the snapshot for a capture whose index is missing. An overlay's upper layer contains
// all changes since the snapshot that it is mounted on; a plain tree is captured completely.
func lostIndex(drv rootfs.Driver, rec *meta.Sandbox) (*layer.Index, timeline.SnapshotID) {
	if drv.Plain() {
		return nil, ""
	}
	return new(layer.Index), rec.MountTop
}
