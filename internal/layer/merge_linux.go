package layer

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Merge makes layer id out of layers, topmost first: laid on what lies below
// them it gives the same tree. Files are hard links, no content is copied.
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
	m := merger{putter: putter{s: s, linkDir: b.links}, ctx: ctx}
	if err := m.dir(src, b.fs, 0, false); err != nil {
		return fault.Wrap(err, "merge layers into %s", id)
	}
	f, err := src.self()
	if err == nil {
		err = m.meta(f, b.fs, false)
	}
	if err == nil {
		err = b.finish()
	}
	return fault.Wrap(err, "merge layers into %s", id)
}

type merger struct {
	putter
	ctx context.Context
}

// dir links what src shows into the open directory dst. hidden says that nothing
// below shows through dst, so that whiteouts are of no use.
func (m *merger) dir(src *mdir, dst, depth int, hidden bool) error {
	if err := m.ctx.Err(); err != nil {
		return err
	}
	list, err := src.list()
	if err != nil {
		return err
	}
	for i := range list {
		f := &list[i]
		if !isDir(&f.st) {
			if isWhiteout(&f.st) && hidden {
				continue
			}
			if err := m.file(f, dst); err != nil {
				return fault.Wrap(err, "link %q", f.path())
			}
			continue
		}
		if err := m.sub(src, f, dst, depth); err != nil {
			return err
		}
	}
	return nil
}

// file gives a file its name in the merged layer, as a copy where the file
// system allows no further links.
func (m *merger) file(f *found, dst int) error {
	err := m.s.fs.Link(f.dirfd(), f.name, dst, f.name)
	if errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EPERM) {
		if isWhiteout(&f.st) {
			return m.whiteout(dst, f.name)
		}
		return m.put(f.dirfd(), f.name, dst, f.name, &f.st)
	}
	return err
}

func (m *merger) sub(src *mdir, f *found, dst, depth int) error {
	if err := m.s.fs.Mkdir(dst, f.name, 0o700); err != nil {
		return fault.Wrap(err, "make directory %q", f.path())
	}
	out, err := openDirAt(dst, f.name)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	sub, err := src.sub(f)
	if err != nil {
		return fault.Wrap(err, "open %q", f.path())
	}
	defer sub.close()
	// Metadata is read before src may be parked, and written after the content.
	var st unix.Stat_t
	a, err := f.dirAttrs(&st)
	if err != nil {
		return fault.Wrap(err, "read %q", f.path())
	}
	if depth >= viewHeld {
		src.park()
	}
	err = m.dir(sub, out, depth+1, f.opaque)
	if e := src.unpark(); err == nil {
		err = e
	}
	if err == nil {
		err = m.dirMetaOf(&st, &a, out, f.opaque)
	}
	return fault.Wrap(err, "merge %q", f.path())
}

func (m *merger) meta(f *found, dst int, opaque bool) error {
	var st unix.Stat_t
	a, err := f.dirAttrs(&st)
	if err != nil {
		return err
	}
	return m.dirMetaOf(&st, &a, dst, opaque)
}
