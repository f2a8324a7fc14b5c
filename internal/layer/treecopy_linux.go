package layer

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// copier copies what a view shows into a directory, on several goroutines.
type copier struct {
	putter
	crew

	dev   uint64                 // the only file system that is read; 0: any
	skip  func(path string) bool // leave out; may be nil
	empty func(path string) bool // keep the directory without its content; may be nil

	entries atomic.Int64
	bytes   atomic.Int64

	mu         sync.Mutex
	unreadable []string // guarded by mu
	changed    []string // guarded by mu
	tolerate   bool     // note what cannot be read instead of failing

	indexed  bool  // tree returns the node of the directory
	racyFrom int64 // with indexed: entries whose ctime is not older are racy
}

// copyWorkers returns the number of workers besides the first: reading, and the file system's own locks, leave room
// for a few more than there are processors.
func copyWorkers() int { return max(2, runtime.GOMAXPROCS(0)) + 1 }

// pending is an entry to copy, and its entry in the index; nil if there is no index.
type pending struct {
	*found
	ent *ent
	kid int // of a directory: which of the node's kids
}

// tree copies the content of src into the open, empty directory dst, but not the directory's own metadata. It leaves
// both open. If indexed, it returns the node of the directory; otherwise nil.
func (c *copier) tree(src *mdir, dst *outDir, depth int) (*dirNode, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	list, node, err := c.list(src)
	if err != nil {
		return node, err
	}
	var g group
	var dirs, files []pending
	for i := range list {
		p := pending{found: &list[i]}
		if node != nil {
			p.ent = &node.ents[i]
		}
		if dirfd.IsDir(&p.st) {
			p.kid = len(dirs)
			dirs = append(dirs, p)
		} else {
			files = append(files, p)
		}
	}
	if node != nil {
		node.kids = make([]*dirNode, len(dirs))
	}
	c.files(&g, files, dst.fd, len(dirs) > 0)
	for _, p := range dirs {
		if g.failed() {
			break
		}
		work := func(inline bool) error {
			kid, err := c.sub(src, p, dst, depth, inline)
			if node != nil {
				p.ent.kid, node.kids[p.kid] = uint32(p.kid), kid
			}
			return err
		}
		if depth < viewHeld && c.take() {
			g.start(func() error { return work(false) }, &c.crew)
			continue
		}
		if depth >= viewHeld {
			g.note(g.wait()) // src must not be used by another goroutine while it is parked
		}
		g.note(work(true))
	}
	return node, g.wait()
}

// list returns the entries of src that are not left out and, if indexed, a node that has them in the same order. A
// directory that cannot be read is noted and counts as empty.
func (c *copier) list(src *mdir) ([]found, *dirNode, error) {
	list, err := src.list(c.ctx, math.MaxInt)
	if err != nil {
		list, err = nil, c.unread(src, err)
	}
	if c.skip != nil {
		list = slices.DeleteFunc(list, func(f found) bool { return c.skip(f.path()) })
	}
	if !c.indexed {
		return list, nil, err
	}
	b := newBuilder(nil, 0)
	b.node.ents = make([]ent, 0, len(list))
	for i := range list {
		b.put([]byte(list[i].name), c.ent(&list[i].st))
	}
	return list, b.node, err
}

func (c *copier) ent(st *unix.Stat_t) (e ent) {
	e.set(st)
	if e.ctime >= c.racyFrom {
		e.flags |= entRacy
	}
	return e
}

// files copies entries that are not directories into the open directory dst, also on other goroutines of g.
// more says that g has other things to do meanwhile.
func (c *copier) files(g *group, files []pending, dst int, more bool) {
	for len(files) > 0 && !g.failed() {
		n := min(chunk, len(files))
		part := files[:n]
		files = files[n:]
		work := func() error {
			for _, p := range part {
				if err := c.file(p, dst); err != nil {
					return err
				}
			}
			return nil
		}
		if (len(files) > 0 || more) && c.take() {
			g.start(work, &c.crew)
			continue
		}
		g.note(work())
	}
}

// group runs work on other goroutines and keeps the first error.
type group struct {
	wg  sync.WaitGroup
	mu  sync.Mutex
	err error // guarded by mu
}

// start runs fn on a goroutine that was taken from the crew.
func (g *group) start(fn func() error, c *crew) {
	g.wg.Go(func() {
		g.note(fn())
		c.spare.Add(1)
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

// file copies an entry that is not a directory. If tolerate is set, an entry that cannot be copied is noted, and
// marked as missing in the index.
func (c *copier) file(p pending, dst int) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if c.tolerate && isWhiteout(&p.st) {
		c.leaveOut(p)
		return nil
	}
	st := p.st
	err := c.put(p.dirfd(), p.name, dst, p.name, &st)
	if err == nil {
		c.entries.Add(1)
		if dirfd.IsRegular(&st) {
			c.bytes.Add(st.Size)
		}
		return nil
	}
	if c.tolerate && (unreadable(err) || st.Mode&unix.S_IFMT == unix.S_IFCHR || st.Mode&unix.S_IFMT == unix.S_IFBLK) {
		// Remove the incomplete copy.
		if e := c.s.fs.Unlink(dst, p.name); e != nil && !errors.Is(e, unix.ENOENT) {
			return fault.Wrap(errors.Join(err, e), "copy %q", p)
		}
		if p.ent != nil {
			p.ent.flags |= entMissing
		}
		return c.unread(p, err)
	}
	return fault.Wrap(err, "copy %q", p)
}

// leaveOut notes an entry that is not imported.
func (c *copier) leaveOut(p pending) {
	p.ent.flags |= entMissing
	c.mu.Lock()
	defer c.mu.Unlock()
	if isWhiteout(&p.st) {
		c.changed = append(c.changed,
			p.path()+": left out a character device 0:0, which marks a deletion in a layer")
		return
	}
	c.unreadable = append(c.unreadable, p.path())
}

// unreadable reports whether err means that this process cannot read the source, or that it disappeared.
func unreadable(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOENT) ||
		errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EIO)
}

// spotted is an entry whose path is joined on demand; %q shortens it.
type spotted interface{ path() string }

// unread notes a path that could not be read, or returns the error.
func (c *copier) unread(at spotted, err error) error {
	if !c.tolerate || !unreadable(err) {
		return fault.Wrap(err, "read %q", at)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreadable = append(c.unreadable, at.path())
	return nil
}

// unopened is unread for a directory. It is not an error if the directory is imported without its content.
func (c *copier) unopened(at spotted, err error) error {
	if c.tolerate && unreadable(err) && c.empty != nil && c.empty(at.path()) {
		return nil
	}
	return c.unread(at, err)
}

// closed reports whether a directory is imported without its content.
func (c *copier) closed(at spotted, st *unix.Stat_t) bool {
	return c.dev != 0 && st.Dev != c.dev || c.empty != nil && c.empty(at.path())
}

// sub copies a directory. inline says that src may be parked meanwhile. If indexed, it completes the
// directory's entry and returns its content.
func (c *copier) sub(src *mdir, p pending, dst *outDir, depth int, inline bool) (*dirNode, error) {
	var st unix.Stat_t
	a, err := p.dirAttrs(&st)
	locked := err != nil
	if locked {
		if !c.tolerate || !unreadable(err) {
			return nil, fault.Wrap(err, "read %q", p)
		}
		// The state of the directory itself is known, but not its content.
		st = p.st
		if e := c.unopened(p, err); e != nil {
			return nil, e
		}
	}
	if p.ent != nil {
		p.ent.set(&st)
		p.ent.size = a.sum()
		if locked {
			p.ent.flags |= entDirty
		}
	}
	out, err := makeDir(c.s.fs, dst.fd, p.name)
	if err != nil {
		return nil, fault.Wrap(err, "create directory %q", p)
	}
	defer out.close()
	node := &dirNode{}
	if !locked && !c.closed(p, &st) {
		if node, err = c.content(src, p.found, dst, out, depth, inline); err != nil {
			return nil, err
		}
	}
	c.entries.Add(1)
	return node, fault.Wrap(c.dirMetaOf(&st, &a, out.fd, false), "copy directory %q", p)
}

func (c *copier) content(src *mdir, f *found, dst, out *outDir, depth int, inline bool) (*dirNode, error) {
	sub, err := src.sub(f)
	if err != nil {
		return &dirNode{}, c.unread(f, err)
	}
	defer sub.close()
	if inline && depth >= viewHeld {
		if err := errors.Join(src.park(sub), dst.park()); err != nil {
			return nil, err
		}
	}
	node, err := c.tree(sub, out, depth+1)
	if err != nil {
		return nil, err
	}
	if inline && depth >= viewHeld {
		return node, errors.Join(src.unpark(sub), dst.unpark(out))
	}
	return node, nil
}
