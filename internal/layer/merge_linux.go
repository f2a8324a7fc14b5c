package layer

import (
	"context"
	"errors"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Merge makes layer id from layers, topmost first. On top of the layers below them, it shows the same tree. Files are
// hard links; no content is copied, unless the file system allows no further links.
func (s *Store) Merge(ctx context.Context, id timeline.LayerID, layers []timeline.LayerID) (err error) {
	if !validID(id) || len(layers) == 0 {
		return fault.New(fault.Invalid, "merge layers into %q: nothing to merge or malformed id", id)
	}
	var stack rootspec.Stack
	for _, l := range layers {
		stack.Layers = append(stack.Layers, s.Dir(l))
	}
	b, err := s.begin(ctx, id)
	if err != nil {
		return fault.Wrap(err, "merge layers into %s", id)
	}
	defer b.undo.Run(&err)
	src, err := s.View(stack).root()
	if err != nil {
		return fault.Wrap(err, "merge layers into %s", id)
	}
	src.keepWhiteouts = true
	defer src.close()
	m := merger{putter{s: s, ctx: ctx, linkDir: b.links, omit: true}}
	if err := m.dir(src, &outDir{fd: b.fs}, 0, false); err != nil {
		return fault.Wrap(err, "merge layers into %s", id)
	}
	f, err := src.self()
	if err == nil {
		err = m.meta(f, b.fs, false)
	}
	if err == nil {
		err = b.finish(ctx)
	}
	return fault.Wrap(err, "merge layers into %s", id)
}

type merger struct {
	putter
}

// dir links the entries of src into the open directory dst. hidden says that no lower layer shows through dst, so
// whiteouts are not needed.
func (m *merger) dir(src *mdir, dst *outDir, depth int, hidden bool) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	list, err := src.list(m.ctx, math.MaxInt)
	if err != nil {
		return err
	}
	filtered := false
	for i := range list {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		f := &list[i]
		if !dirfd.IsDir(&f.st) {
			if isWhiteout(&f.st) {
				if hidden {
					continue
				}
				if !filtered {
					if err := m.filtered(dst.fd); err != nil {
						return fault.Wrap(err, "mark %q", src)
					}
					filtered = true
				}
			}
			if err := m.file(f, dst.fd); err != nil {
				return fault.Wrap(err, "link %q", f)
			}
			continue
		}
		if err := m.sub(src, f, dst, depth, hidden); err != nil {
			return err
		}
	}
	return nil
}

// filtered makes overlayfs look for whiteouts in a directory even if no layer below the merged ones has it. Otherwise
// overlayfs would list the whiteouts as names that do not exist, and the directory could not be removed. A file
// system without attributes cannot be in an overlay either.
func (m *merger) filtered(dir int) error {
	err := m.s.fs.SetXattr(dir, xattrOrigin, nil)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// file adds a file to the merged layer under its name, as a copy if the file system allows no further links. A removal
// of the other form, in a home that was moved to another file system, gets the form of new layers.
func (m *merger) file(f *found, dst int) error {
	if isWhiteout(&f.st) && f.src().byFiles != m.s.byFiles {
		return m.whiteout(dst, f.name)
	}
	err := m.s.fs.Link(f.dirfd(), f.name, dst, f.name)
	if errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EPERM) {
		if isWhiteout(&f.st) {
			return m.whiteout(dst, f.name)
		}
		return m.put(f.dirfd(), f.name, dst, f.name, &f.st)
	}
	return err
}

func (m *merger) sub(src *mdir, f *found, dst *outDir, depth int, hidden bool) error {
	out, err := makeDir(m.s.fs, dst.fd, f.name)
	if err != nil {
		return fault.Wrap(err, "create directory %q", f)
	}
	defer out.close()
	sub, err := src.sub(f)
	if err != nil {
		return fault.Wrap(err, "open %q", f)
	}
	defer sub.close()
	// Metadata is read before src may be parked, and written after the content.
	var st unix.Stat_t
	a, err := marked(f, &st)
	if err != nil {
		return fault.Wrap(err, "read %q", f)
	}
	if depth >= viewHeld {
		if err := errors.Join(src.park(sub), dst.park()); err != nil {
			return err
		}
	}
	if err := m.dir(sub, out, depth+1, hidden || f.opaque); err != nil {
		return err
	}
	if err := errors.Join(src.unpark(sub), dst.unpark(out)); err != nil {
		return fault.Wrap(err, "reopen %q", src)
	}
	return fault.Wrap(m.dirMetaOf(&st, &a, out.fd, f.opaque), "merge %q", f)
}

func (m *merger) meta(f *found, dst int, opaque bool) error {
	var st unix.Stat_t
	a, err := marked(f, &st)
	if err != nil {
		return err
	}
	return m.dirMetaOf(&st, &a, dst, opaque)
}

// marked returns a directory's attributes. The mark of a skeleton has its name in new layers.
func marked(f *found, st *unix.Stat_t) (attrs, error) {
	a, err := f.dirAttrs(st)
	if i := slices.IndexFunc(a.list, func(x xattr) bool { return x.Key == xattrSkeleton1 }); i >= 0 && f.src().marks1 {
		a.list[i].Key = xattrSkeleton
	}
	return a, err
}

// outDir is a directory that is being filled. Deep in a tree it is parked while directories below it are filled, so
// that the number of descriptors is bounded at any depth.
type outDir struct {
	fd       int // -1 while parked
	ino, dev uint64
}

// makeDir makes a directory and opens it.
func makeDir(fsys vfs.FS, dir int, name string) (*outDir, error) {
	if err := fsys.Mkdir(dir, name, 0o700); err != nil {
		return nil, err
	}
	fd, err := dirfd.OpenDir(dir, name)
	if err != nil {
		return nil, err
	}
	return &outDir{fd: fd}, nil
}

func (d *outDir) close() {
	closeAll(d.fd)
	d.fd = -1
}

func (d *outDir) park() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return err
	}
	d.ino, d.dev = st.Ino, st.Dev
	d.close()
	return nil
}

// unpark opens the directory again, from one in it. It does nothing if the directory is open.
func (d *outDir) unpark(child *outDir) (err error) {
	if d.fd < 0 {
		d.fd, err = dirfd.OpenAbove(child.fd, d.dev, d.ino)
	}
	return err
}
