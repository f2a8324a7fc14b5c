package layer

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// chunk is the number of files of one directory that one worker writes at a time.
const chunk = 16

// emitter writes the directories that a walk chose into a layer.
type emitter struct {
	putter
	crew
	origin uint16

	rootDone bool // the layer's root was written or marked; emitting starts on one goroutine
}

// dir writes d from the open directory src into the open, empty directory dst. It owns both descriptors and returns
// them; it may have reopened them.
func (e *emitter) dir(d *delta, src, dst, depth int, path *trail) (int, int, error) {
	if err := e.ctx.Err(); err != nil {
		return src, dst, err
	}
	if err := e.files(d, src, dst, path); err != nil {
		return src, dst, err
	}
	for _, name := range d.gone {
		if err := e.ctx.Err(); err != nil {
			return src, dst, err
		}
		if err := e.whiteout(dst, name); err != nil {
			return src, dst, fault.Wrap(err, "record removal of %q", path.down(name))
		}
	}
	src, dst, err := e.kids(d, src, dst, depth, path)
	if err != nil {
		return src, dst, err
	}
	if err := e.dirMeta(src, dst, d.opaque); err != nil {
		return src, dst, fault.Wrap(err, "copy directory %q", path.down(""))
	}
	return src, dst, nil
}

// share is each with a function that any goroutine can call.
func (e *emitter) share(n int, do func(i int) error) error {
	return e.each(n, do, func() func(int) error { return do })
}

func (e *emitter) files(d *delta, src, dst int, path *trail) error {
	return e.share((len(d.items)+chunk-1)/chunk, func(n int) error {
		for i := n * chunk; i < min((n+1)*chunk, len(d.items)); i++ {
			if err := e.item(&d.items[i], src, dst, path); err != nil {
				return err
			}
		}
		return e.ctx.Err()
	})
}

func (e *emitter) item(it *item, src, dst int, path *trail) error {
	var st unix.Stat_t
	it.ent.toStat(&st)
	if !it.ent.isReg() || it.ent.nlink > 1 {
		var err error
		if st, err = dirfd.Lstat(src, it.name); err != nil {
			return fault.Wrap(err, "read %q", path.down(it.name))
		}
	}
	if err := e.put(src, it.name, dst, it.name, &st); err != nil {
		return hintReadable(fault.Wrap(err, "copy %q", path.down(it.name)), path.down(it.name).String())
	}
	it.ent.origin = e.origin
	return nil
}

// toStat sets the fields of st that put needs.
func (e *ent) toStat(st *unix.Stat_t) {
	st.Mode, st.Uid, st.Gid, st.Ino = e.mode, e.uid, e.gid, e.ino
	setCount(&st.Nlink, e.nlink)
}

// setCount sets a link count, which is 32 bits wide on arm64 and 64 on amd64.
func setCount[T uint32 | uint64](to *T, n uint32) { *to = T(n) }

func (e *emitter) kids(d *delta, src, dst, depth int, path *trail) (int, int, error) {
	if depth >= maxHeld {
		return e.deepKids(d, src, dst, depth, path)
	}
	return src, dst, e.share(len(d.kids), func(i int) error {
		cs, cd, err := e.enter(d.kids[i], src, dst, path)
		if err == nil {
			cs, cd, err = e.dir(d.kids[i], cs, cd, depth+1, path.down(d.kids[i].name))
		}
		closeAll(cs, cd)
		return err
	})
}

// deepKids is kids deep in a tree: it closes src and dst while it is below them.
func (e *emitter) deepKids(d *delta, src, dst, depth int, path *trail) (int, int, error) {
	var ss, ds unix.Stat_t
	if err := errors.Join(unix.Fstat(src, &ss), unix.Fstat(dst, &ds)); err != nil {
		return src, dst, err
	}
	for _, k := range d.kids {
		cs, cd, err := e.enter(k, src, dst, path)
		if err != nil {
			return src, dst, err
		}
		closeAll(src, dst)
		src, dst = -1, -1
		cs, cd, err = e.dir(k, cs, cd, depth+1, path.down(k.name))
		if cs >= 0 && cd >= 0 {
			var e1, e2 error
			src, e1 = dirfd.OpenAbove(cs, ss.Dev, ss.Ino)
			dst, e2 = dirfd.OpenAbove(cd, ds.Dev, ds.Ino)
			err = errors.Join(err, e1, e2)
		}
		closeAll(cs, cd)
		if err != nil {
			return src, dst, err
		}
	}
	return src, dst, nil
}

// enter makes a subdirectory and opens it and its original.
func (e *emitter) enter(k *delta, src, dst int, path *trail) (cs, cd int, err error) {
	if err := e.s.fs.Mkdir(dst, k.name, 0o700); err != nil {
		return -1, -1, fault.Wrap(err, "copy directory %q", path.down(k.name))
	}
	if cd, err = dirfd.OpenDir(dst, k.name); err != nil {
		return -1, -1, err
	}
	if cs, err = dirfd.OpenDir(src, k.name); err != nil {
		unix.Close(cd)
		return -1, -1, fault.Wrap(err, "open directory %q", path.down(k.name))
	}
	return cs, cd, nil
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
