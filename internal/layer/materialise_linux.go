package layer

import (
	"context"
	"crypto/rand"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Materialise writes the tree that v shows into dst, an existing empty directory, as a plain tree with
// owners, modes, times, attributes, links and holes. After a failure the caller removes dst, which may have
// content.
func (s *Store) Materialise(ctx context.Context, v *View, dst string) (err error) {
	out, err := dirfd.OpenDir(unix.AT_FDCWD, dst)
	if err != nil {
		return fault.Wrap(err, "materialise %s", dst)
	}
	defer unix.Close(out)
	c := &copier{putter: putter{ctx: ctx}}
	c.s, c.toPlain, c.strip = s, true, true
	c.hire(copyWorkers())
	// Links are kept in dst itself: it may be a subvolume or a separate file system.
	links := ".coppice-" + rand.Text()
	if err := s.fs.Mkdir(out, links, 0o700); err != nil {
		return fault.Wrap(err, "materialise %s", dst)
	}
	if c.linkDir, err = dirfd.OpenDir(out, links); err != nil {
		return fault.Wrap(err, "materialise %s", dst)
	}
	_, err = s.materialise(v, c, out)
	unix.Close(c.linkDir)
	err = errors.Join(err, removeAt(context.WithoutCancel(ctx), s.fs, out, links))
	if err == nil {
		err = c.rootMeta(v, out, &ent{})
	}
	return fault.Wrap(err, "materialise %s", dst)
}

func (s *Store) materialise(v *View, c *copier, out int) (*dirNode, error) {
	src, err := v.root()
	if err != nil {
		return nil, err
	}
	defer src.close()
	return c.tree(src, &outDir{fd: out}, 0)
}

// rootMeta sets the metadata of dst to that of the view's root, and returns its state.
func (c *copier) rootMeta(v *View, out int, self *ent) error {
	src, err := v.root()
	if err != nil {
		return err
	}
	defer src.close()
	f, err := src.self()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	a, err := f.dirAttrs(&st)
	if err != nil {
		return err
	}
	*self = c.ent(&st)
	self.size = a.sum()
	return c.dirMetaOf(&st, &a, out, false)
}
