package layer

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"os"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Store is a directory of layers. Its methods are safe for concurrent use on different layers; the engine
// serializes those on one layer.
type Store struct {
	fs      vfs.FS
	dir     string // home/layers
	top     int    // dir, open
	tmp     int    // dir/tmp, open
	umask   uint32
	byFiles bool        // see RemovesByFiles
	noClone atomic.Bool // FICLONE was refused once
	storeID devIno      // Coppice's home, which a view of the host must not show
	turn    turn        // for one comparison by lines at a time
	entries int64       // maximum in a live root
}

type devIno struct{ dev, ino uint64 }

// Open opens the store at dir and creates it if it is missing. It removes incomplete layers that a killed process
// left. Only one process may have a store open. The caller calls Close.
func Open(ctx context.Context, fsys vfs.FS, dir string) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return nil, fault.Wrap(err, "open layer store %s", dir)
	}
	s := &Store{fs: fsys, dir: dir, top: -1, tmp: -1, umask: readUmask(), turn: make(turn, 1), entries: limit.LiveEntries}
	var err error
	if s.top, err = dirfd.OpenDir(unix.AT_FDCWD, dir); err != nil {
		return nil, fault.Wrap(err, "open layer store %s", dir)
	}
	if s.tmp, err = dirfd.OpenDir(s.top, "tmp"); err != nil {
		unix.Close(s.top)
		return nil, fault.Wrap(err, "open layer store %s", dir)
	}
	if err := spread(s.tmp); err != nil {
		return nil, errors.Join(fault.Wrap(err, "open layer store %s", dir), s.Close())
	}
	s.byFiles = refusesWhiteouts(s.tmp) // before sweep
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(dir), &st); err == nil {
		s.storeID = devIno{st.Dev, st.Ino}
	}
	if err := s.sweep(ctx); err != nil {
		return nil, errors.Join(fault.Wrap(err, "clean layer store %s", dir), s.Close())
	}
	return s, nil
}

// LimitEntries sets how many files and directories a live root may have, each of which a capture holds in
// memory; the default is limit.LiveEntries. It must be called before the store is used.
func (s *Store) LimitEntries(n int64) { s.entries = n }

// Close releases the store's descriptors. No method may run then or later.
func (s *Store) Close() error {
	return errors.Join(unix.Close(s.tmp), unix.Close(s.top))
}

// Dir returns the host path of a layer's tree.
func (s *Store) Dir(id timeline.LayerID) string {
	return filepath.Join(s.dir, string(id), "fs")
}

// List returns the existing layers, in no order.
func (s *Store) List(ctx context.Context) ([]timeline.LayerID, error) {
	names, err := dirfd.Names(s.top)
	if err != nil {
		return nil, fault.Wrap(err, "list layers")
	}
	var out []timeline.LayerID
	for _, n := range names {
		if validID(timeline.LayerID(n)) {
			out = append(out, timeline.LayerID(n))
		}
	}
	return out, ctx.Err()
}

// Has reports whether a layer exists.
func (s *Store) Has(id timeline.LayerID) bool {
	if !validID(id) {
		return false
	}
	st, err := dirfd.Lstat(s.top, string(id))
	return err == nil && dirfd.IsDir(&st)
}

// Remove deletes a layer. It is first renamed, so that a crash leaves it whole or removed. A layer that does
// not exist is not an error.
func (s *Store) Remove(ctx context.Context, id timeline.LayerID) error {
	if !validID(id) {
		return fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	trash := "rm-" + string(id)
	err := s.fs.Rename(s.top, string(id), s.tmp, trash)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return fault.Wrap(err, "remove layer %s", id)
	}
	for range removeTries { // a call of Finalize that is being cancelled may add a file meanwhile
		if err = removeAt(ctx, s.fs, s.tmp, trash); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fault.Wrap(err, "remove layer %s", id)
	}
	return nil
}

// removeTries is the number of attempts to remove the tree of a layer while something is added to it.
const removeTries = 5

// sweep removes everything in tmp that can be removed. The rest only takes space: no name in
// tmp is used twice.
func (s *Store) sweep(ctx context.Context) error {
	names, err := dirfd.Names(s.tmp)
	if err != nil {
		return err
	}
	for _, n := range names {
		_ = removeAt(ctx, s.fs, s.tmp, n)
	}
	return ctx.Err()
}

// validID reports whether id has the form of a layer id, so that it may be used as a file name.
func validID(id timeline.LayerID) bool {
	if len(id) != 16 {
		return false
	}
	return strings.Trim(string(id), "0123456789abcdef") == ""
}

// readUmask finds the umask without changing it.
func readUmask() uint32 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o777
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if m, err := strconv.ParseUint(strings.TrimSpace(v), 8, 32); err == nil {
				return uint32(m)
			}
		}
	}
	return 0o777
}
