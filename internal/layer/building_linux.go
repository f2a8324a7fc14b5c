package layer

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/quota"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/undo"
)

// building is a layer that is not visible yet.
type building struct {
	s     *Store
	id    timeline.LayerID
	tmp   string
	dir   int // layers/tmp/<id>
	fs    int // its fs
	links int // its links: first copies of files with several names
	undo  undo.Stack
}

// begin makes an empty layer in tmp. The caller must defer b.undo.Run: it closes everything, and removes the layer
// unless finish was reached.
func (s *Store) begin(ctx context.Context, id timeline.LayerID) (b *building, err error) {
	if s.Has(id) {
		return nil, fault.New(fault.Exists, "layer %s already exists", id)
	}
	b = &building{s: s, id: id, tmp: string(id), dir: -1, fs: -1, links: -1}
	if err := s.fs.Mkdir(s.tmp, b.tmp, 0o700); err != nil {
		return nil, err
	}
	b.undo.Push(func() error { return removeAt(context.WithoutCancel(ctx), s.fs, s.tmp, b.tmp) })
	b.undo.Push(func() error { closeAll(b.links, b.fs, b.dir); return nil })
	defer func() {
		if err != nil {
			b.undo.Run(&err)
		}
	}()
	if b.dir, err = dirfd.OpenDir(s.tmp, b.tmp); err != nil {
		return b, err
	}
	// A file system without attributes has no marks either, except for removals.
	err = s.fs.SetXattr(b.dir, xattrMarks, []byte(s.marks()))
	if err != nil && (s.byFiles || !errors.Is(err, unix.ENOTSUP)) {
		return b, err
	}
	for _, d := range []struct {
		name string
		fd   *int
	}{{"fs", &b.fs}, {"links", &b.links}} {
		if err = s.fs.Mkdir(b.dir, d.name, 0o700); err != nil {
			return b, err
		}
		if *d.fd, err = dirfd.OpenDir(b.dir, d.name); err != nil {
			return b, err
		}
	}
	return b, nil
}

// charge assigns the tree of a new layer to a project, and links too: a file cannot have names in two projects. The
// manifest is not charged, since it is written when the process may no longer be exempt from limits.
func (b *building) charge(p quota.Project) error {
	if p == 0 {
		return nil
	}
	if err := quota.Put(b.fs, p); err != nil {
		return err
	}
	return quota.Put(b.links, p)
}

// finish makes the layer visible.
func (b *building) finish(ctx context.Context) error {
	if err := b.publish(ctx); err != nil {
		return err
	}
	b.keep()
	return nil
}

// publish renames the layer to its final name.
func (b *building) publish(ctx context.Context) error {
	unix.Close(b.links)
	b.links = -1
	if err := removeAt(context.WithoutCancel(ctx), b.s.fs, b.dir, "links"); err != nil {
		return err
	}
	return b.s.fs.Rename(b.s.tmp, b.tmp, b.s.top, string(b.id))
}

// keep makes a published layer permanent.
func (b *building) keep() {
	b.undo.Release()
	closeAll(b.fs, b.dir)
}
