package layer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// copier copies what a view shows into a directory, on several goroutines.
type copier struct {
	putter
	ctx   context.Context
	spare atomic.Int32

	dev   uint64                 // the only file system that is read; 0: any
	skip  func(path string) bool // leave out; may be nil
	empty func(path string) bool // keep the directory without its content; may be nil

	entries atomic.Int64
	bytes   atomic.Int64

	mu         sync.Mutex
	unreadable []string // guarded by mu
	tolerate   bool     // note what cannot be read instead of failing
}

// Workers beyond the first: reading and the file system's own locks leave room
// for a few more than there are processors.
func copyWorkers() int32 { return int32(max(2, runtime.GOMAXPROCS(0)) + 1) }

// tree copies what src shows into the open, empty directory dst, but not the
// directory's own metadata. It leaves both open.
func (c *copier) tree(src *mdir, dst *outDir, depth int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	list, err := src.list()
	if err != nil {
		return c.unread(src.path, err)
	}
	var g group
	var dirs []*found
	var files []*found
	for i := range list {
		f := &list[i]
		if c.skip != nil && c.skip(f.path()) {
			continue
		}
		if isDir(&f.st) {
			dirs = append(dirs, f)
		} else {
			files = append(files, f)
		}
	}
	for len(files) > 0 && !g.failed() {
		n := min(chunk, len(files))
		part := files[:n]
		files = files[n:]
		work := func() error {
			for _, f := range part {
				if err := c.file(f, dst.fd); err != nil {
					return err
				}
			}
			return nil
		}
		if len(files)+len(dirs) > 0 && c.take() {
			g.start(work, &c.spare)
			continue
		}
		g.note(work())
	}
	for _, f := range dirs {
		if g.failed() {
			break
		}
		work := func(inline bool) error { return c.sub(src, f, dst, depth, inline) }
		if depth < viewHeld && c.take() {
			g.start(func() error { return work(false) }, &c.spare)
			continue
		}
		if depth >= viewHeld {
			g.note(g.wait()) // nobody else may use src while it is parked
		}
		g.note(work(true))
	}
	return g.wait()
}

func (c *copier) take() bool {
	for n := c.spare.Load(); n > 0; n = c.spare.Load() {
		if c.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// group runs work on other goroutines and keeps the first error.
type group struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	err error // guarded by mu
}

func (g *group) start(fn func() error, spare *atomic.Int32) {
	g.wg.Go(func() {
		g.note(fn())
		spare.Add(1)
	})
}

func (g *group) note(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
	}
}

func (g *group) failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err != nil
}

func (g *group) wait() error {
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (c *copier) file(f *found, dst int) error {
	st := f.st
	err := c.put(f.dirfd(), f.name, dst, f.name, &st)
	if err == nil {
		c.entries.Add(1)
		if isReg(&st) {
			c.bytes.Add(st.Size)
		}
		return nil
	}
	if c.tolerate && (unreadable(err) || st.Mode&unix.S_IFMT == unix.S_IFCHR || st.Mode&unix.S_IFMT == unix.S_IFBLK) {
		// What was begun of it may not stay.
		if e := c.s.fs.Unlink(dst, f.name); e != nil && !errors.Is(e, unix.ENOENT) {
			return fault.Wrap(errors.Join(err, e), "copy %q", f.path())
		}
		return c.unread(f.path(), err)
	}
	return fault.Wrap(err, "copy %q", f.path())
}

// unreadable says whether err comes from reading what this process may not, or
// what went away meanwhile.
func unreadable(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EIO)
}

// unread notes a path that could not be read, or gives the error back.
func (c *copier) unread(path string, err error) error {
	if !c.tolerate || !unreadable(err) {
		return fault.Wrap(err, "read %q", path)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreadable = append(c.unreadable, path)
	return nil
}

// sub copies a directory. inline says that src may be parked meanwhile.
func (c *copier) sub(src *mdir, f *found, dst *outDir, depth int, inline bool) error {
	var st unix.Stat_t
	a, err := f.dirAttrs(&st)
	if err != nil {
		if !c.tolerate || !unreadable(err) {
			return fault.Wrap(err, "read %q", f.path())
		}
		// The directory itself is known, if not what is in it.
		st = f.st
		if e := c.unread(f.path(), err); e != nil {
			return e
		}
	}
	closed := err != nil || c.dev != 0 && st.Dev != c.dev || c.empty != nil && c.empty(f.path())
	out, err := makeDir(c.s.fs, dst.fd, f.name)
	if err != nil {
		return fault.Wrap(err, "make directory %q", f.path())
	}
	defer out.close()
	if !closed {
		if err := c.content(src, f, dst, out, depth, inline); err != nil {
			return err
		}
	}
	c.entries.Add(1)
	return fault.Wrap(c.dirMetaOf(&st, &a, out.fd, false), "copy directory %q", f.path())
}

func (c *copier) content(src *mdir, f *found, dst, out *outDir, depth int, inline bool) error {
	sub, err := src.sub(f)
	if err != nil {
		return c.unread(f.path(), err)
	}
	defer sub.close()
	if inline && depth >= viewHeld {
		src.park()
		if err := dst.park(); err != nil {
			return err
		}
	}
	if err := c.tree(sub, out, depth+1); err != nil {
		return err
	}
	if inline && depth >= viewHeld {
		return errors.Join(src.unpark(), dst.unpark(out))
	}
	return nil
}
