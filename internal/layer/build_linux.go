package layer

import (
	"context"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Builder is a layer that a function fills. Paths are relative to the layer's root, with slashes; "." is the root.
// Several goroutines may use it at once, until the function returns.
type Builder struct {
	b    *building
	root *os.Root

	mu   sync.Mutex
	dirs map[string]DirMeta // guarded by mu
}

// DirMeta is the metadata of a directory.
type DirMeta struct {
	Mode     uint32 // permission bits, with setuid, setgid and sticky
	UID, GID uint32 // as the store's process sees them
	Mtime    time.Time
	// Skeleton says that the directory only leads to the content of the layer. A mount shows its attributes; a view
	// shows those of the next lower layer.
	Skeleton bool
}

// Build makes layer id of what fill writes below its root, which is empty at first. If fill fails there is no
// layer, and nothing is left; what a killed process left is removed when the store is opened. It returns
// Exists if the layer exists. The layer is not flushed: Finalize does that.
func (s *Store) Build(ctx context.Context, id timeline.LayerID, fill func(b *Builder) error) error {
	return fault.Wrap(s.build(ctx, id, fill), "build layer %s", id)
}

func (s *Store) build(ctx context.Context, id timeline.LayerID, fill func(b *Builder) error) (err error) {
	if !validID(id) {
		return fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	b, err := s.begin(ctx, id)
	if err != nil {
		return err
	}
	defer b.undo.Run(&err)
	root, err := os.OpenRoot(filepath.Join(s.dir, "tmp", b.tmp, "fs"))
	if err != nil {
		return err
	}
	w := &Builder{b: b, root: root, dirs: map[string]DirMeta{".": {Mode: 0o755, Mtime: time.Unix(0, 0), Skeleton: true}}}
	if err := errors.Join(fill(w), root.Close()); err != nil {
		return err
	}
	if err := w.finish(ctx); err != nil {
		return err
	}
	return b.finish(ctx)
}

// Root returns the root of the layer. Files below it belong to the user of the store's process. Special files may
// only be made with Whiteout, and attributes must not have names that begin with "user.overlay.". The root itself is
// a skeleton unless Dir says otherwise.
func (w *Builder) Root() *os.Root { return w.root }

// Dir makes a directory, unless it exists. It gets its metadata when fill has returned without an error, so
// that writes in it meanwhile do not change its times. The directory above must exist.
func (w *Builder) Dir(p string, m DirMeta) error {
	p = path.Clean(p)
	if p != "." {
		if err := w.at(p, func(dir int, name string) error { return w.b.s.fs.Mkdir(dir, name, 0o700) }); err != nil &&
			!errors.Is(err, unix.EEXIST) {
			return fault.Wrap(err, "create directory %q", p)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirs[p] = m
	return nil
}

// Whiteout hides a path of lower layers. The directory above the path must exist, and the path must not.
func (w *Builder) Whiteout(p string) error {
	return fault.Wrap(w.at(path.Clean(p), func(dir int, name string) error {
		return w.b.s.whiteout(dir, name)
	}), "hide %q", p)
}

// Opaque hides everything in lower layers below a directory, which must exist.
func (w *Builder) Opaque(p string) error {
	return fault.Wrap(w.within(path.Clean(p), func(dir int) error {
		return w.b.s.fs.SetXattr(dir, xattrOpaque, []byte("y"))
	}), "make directory %q opaque", p)
}

// at calls do with the open directory that contains p, and the name of p in it.
func (w *Builder) at(p string, do func(dir int, name string) error) error {
	dir, name := path.Split(p)
	if name == ".." || name == "." || name == "" {
		return fault.New(fault.Invalid, "invalid path %q in a layer", p)
	}
	return w.within(path.Clean(dir), func(fd int) error { return do(fd, name) })
}

// within calls do with an open directory.
func (w *Builder) within(p string, do func(dir int) error) error {
	fd, err := dirfd.OpenLong(w.b.fs, strings.TrimPrefix(p, "/"), dirfd.DirFlags, dirfd.Beneath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

// finish sets the metadata of directories, inner ones first.
func (w *Builder) finish(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(w.dirs))) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.within(p, func(fd int) error { return w.b.s.setDir(fd, w.dirs[p]) }); err != nil {
			return fault.Wrap(err, "finish directory %q", p)
		}
	}
	return nil
}

// setDir sets the metadata of an open directory, its time last.
func (s *Store) setDir(fd int, m DirMeta) error {
	if m.Skeleton {
		if err := s.fs.SetXattr(fd, xattrSkeleton, []byte("y")); err != nil {
			return err
		}
	}
	if m.UID != 0 || m.GID != 0 {
		if err := s.fs.ChownAt(fd, "", m.UID, m.GID); err != nil {
			return err
		}
	}
	if err := s.fs.Chmod(fd, m.Mode&0o7777); err != nil {
		return err
	}
	return s.fs.Utimes(fd, "", m.Mtime.UnixNano())
}
