package layer

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// viewHeld is the depth down to which a walk of a view keeps descriptors open: each directory may need one for every
// layer.
const viewHeld = 24

// mdir is one directory of a view: the same path in every layer that contributes to it, topmost first.
type mdir struct {
	v *View
	// up and name locate the directory; the root has neither. The path is joined from
	// them on demand: if each directory held its path, memory would grow with the square
	// of a tree's depth.
	up     *mdir
	name   string
	depth  int
	size   int     // bytes of the path
	grafts []graft // trees that begin here or further down
	levels []level
	// keepWhiteouts lists whiteouts as entries: merged layers must keep them.
	keepWhiteouts bool
}

// level is a directory in one of the view's trees.
type level struct {
	fd  int    // -1 while parked
	src int    // index into the view's sources
	id  devIno // of the directory, once it was parked
}

// graft is a tree that begins in a directory of a view, or below it.
type graft struct {
	src int    // index into the view's sources
	rel string // where, relative to the directory; "" is the directory itself
}

// found is one entry of an mdir. It is valid while the mdir is open.
type found struct {
	m      *mdir
	name   string
	st     unix.Stat_t
	level  int     // the level of m that has it
	dirs   []int   // of a directory: the levels that contribute to it
	opaque bool    // of a directory: something hides the layers further down
	alt    *source // of a directory: the tree whose root it is
}

// root opens the root of the view.
func (v *View) root() (*mdir, error) {
	m := &mdir{v: v}
	for i := range v.sources {
		m.grafts = append(m.grafts, graft{i, strings.TrimPrefix(v.sources[i].at, "/")})
	}
	if err := m.graft(); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// down returns a directory in m, with nothing open yet. It returns TooLarge if the directory is deeper than any walk
// goes.
func (m *mdir) down(name string) (*mdir, error) {
	sub := &mdir{v: m.v, up: m, name: name, depth: m.depth + 1, size: m.size + 1 + len(name),
		keepWhiteouts: m.keepWhiteouts}
	if err := tooDeep(sub.depth, sub); err != nil {
		return nil, err
	}
	for _, g := range m.grafts {
		if first, rest, _ := strings.Cut(g.rel, "/"); first == name {
			sub.grafts = append(sub.grafts, graft{g.src, rest})
		}
	}
	return sub, nil
}

// graft opens the trees that begin at the directory.
func (m *mdir) graft() error {
	for _, g := range m.grafts {
		if g.rel != "" {
			continue
		}
		fd, err := dirfd.OpenDir(unix.AT_FDCWD, m.v.sources[g.src].dir)
		if err != nil {
			return fault.Wrap(err, "open %s", m.v.sources[g.src].dir)
		}
		m.levels = append(m.levels, level{fd: fd, src: g.src})
	}
	return nil
}

// grafted returns the topmost tree that begins at the entry name of m.
func (m *mdir) grafted(name string) *source {
	for _, g := range m.grafts {
		if g.rel == name {
			return &m.v.sources[g.src]
		}
	}
	return nil
}

// path returns the directory's path in the view. Only the depth of the tree limits its length.
func (m *mdir) path() string {
	if m.up == nil {
		return "/"
	}
	return m.tail(m.size)
}

// tail returns the last n bytes of the path, or fewer, cut at a name.
func (m *mdir) tail(n int) string {
	b := make([]byte, n)
	for ; m.up != nil && n > len(m.name); m = m.up {
		n -= len(m.name) + 1
		b[n] = '/'
		copy(b[n+1:], m.name)
	}
	return string(b[n:])
}

// String returns the path for messages; of a long path, only the end.
func (m *mdir) String() string {
	switch {
	case m.up == nil:
		return "/"
	case m.size > limit.MessagePath:
		return "..." + m.tail(limit.MessagePath)
	}
	return m.path()
}

func (m *mdir) close() {
	for i := range m.levels {
		closeAll(m.levels[i].fd)
		m.levels[i].fd = -1
	}
}

// park closes the descriptors that unpark can open again from sub, an open directory in m. The others stay open: each
// tree of a view ends at most once on the way down to a directory, so there are at most as many as trees.
func (m *mdir) park(sub *mdir) error {
	for i := range m.levels {
		l := &m.levels[i]
		if sub.in(l.src) < 0 {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(l.fd, &st); err != nil {
			return fault.Wrap(err, "read %q", m)
		}
		l.id = devIno{st.Dev, st.Ino}
		closeAll(l.fd)
		l.fd = -1
	}
	return nil
}

// in returns the open directory of a tree; -1 if there is none.
func (m *mdir) in(src int) int {
	for i := range m.levels {
		if m.levels[i].src == src {
			return m.levels[i].fd
		}
	}
	return -1
}

// unpark reopens what park closed: one step up from sub, whatever the depth. If sub was
// moved or is closed, as can happen in a live tree, it opens by path.
func (m *mdir) unpark(sub *mdir) error {
	for i := range m.levels {
		l := &m.levels[i]
		if l.fd >= 0 {
			continue
		}
		err := error(unix.ESTALE)
		if child := sub.in(l.src); child >= 0 {
			l.fd, err = dirfd.OpenAbove(child, l.id.dev, l.id.ino)
		}
		if moved(err) {
			l.fd, err = m.reopen(l.src)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reopen opens the directory by its path in one of the trees.
func (m *mdir) reopen(src int) (int, error) {
	s := &m.v.sources[src]
	root, err := dirfd.OpenDir(unix.AT_FDCWD, s.dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	rel, _ := below(s.at, m.path())
	return dirfd.OpenLong(root, cmp.Or(rel, "."), dirfd.DirFlags, dirfd.Beneath)
}

// self returns the root as an entry of itself.
func (m *mdir) self() (*found, error) {
	f := &found{m: m, name: "."}
	f.level = m.owner()
	return f, unix.Fstat(m.levels[f.level].fd, &f.st)
}

// owner picks the level whose metadata counts: the first that is not a skeleton.
func (m *mdir) owner() int {
	for i := range m.levels {
		if !m.src(i).isSkeleton(m.levels[i].fd) {
			return i
		}
	}
	return max(0, len(m.levels)-1)
}

// isSkeleton reports whether a directory of the tree is a skeleton.
func (s *source) isSkeleton(fd int) bool {
	var b [4]byte
	if s.plain {
		return false
	}
	n, err := unix.Fgetxattr(fd, s.skeleton(), b[:])
	return err == nil && n == 1
}

// skeleton is the name of the attribute that marks a skeleton in the tree.
func (s *source) skeleton() string {
	if s.marks1 {
		return xattrSkeleton1
	}
	return xattrSkeleton
}

// child returns one entry; nil if the view has none with that name.
func (m *mdir) child(name string) (*found, error) {
	if len(name) > 255 {
		return nil, nil
	}
	c := collect{m: m, name: name}
	for i := range m.levels {
		st, err := dirfd.Lstat(m.levels[i].fd, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		more, err := c.take(i, &st)
		if err != nil || !more {
			if err != nil {
				return nil, err
			}
			break
		}
	}
	return c.result()
}

// list returns all entries, sorted by name. It returns TooLarge if there are more than most: all are held in memory,
// with their state.
func (m *mdir) list(ctx context.Context, most int) ([]found, error) {
	r := dirfd.NewReader()
	defer r.Close()
	var all []*collect
	var by map[string]*collect
	if len(m.levels) > 1 {
		by = map[string]*collect{}
	}
	for i := range m.levels {
		if err := r.Start(m.levels[i].fd); err != nil {
			return nil, err
		}
		for {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			name, _, ok, err := r.Next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			c := by[string(name)]
			if c != nil && c.done {
				continue
			}
			var st unix.Stat_t
			if err := r.Lstat(name, &st); err != nil {
				if errors.Is(err, unix.ENOENT) {
					continue
				}
				return nil, err
			}
			if c == nil {
				c = &collect{m: m, name: string(name)}
				if all = append(all, c); len(all) > most {
					return nil, fault.New(fault.TooLarge, "%q has more than %d entries", m, most).
						WithHint("compare other paths: coppice diff NAME -- PATH")
				}
				if by != nil {
					by[c.name] = c
				}
			}
			more, err := c.take(i, &st)
			if err != nil {
				return nil, err
			}
			c.done = !more
		}
	}
	out := make([]found, 0, len(all))
	for _, c := range all {
		f, err := c.result()
		if err != nil {
			return nil, err
		}
		if f != nil {
			out = append(out, *f)
		}
	}
	slices.SortFunc(out, func(a, b found) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// collect merges the entries with one name in all levels, topmost first, as overlayfs does: the first that is not a
// directory hides the rest.
type collect struct {
	m     *mdir
	name  string
	f     *found
	known bool // the directory's own metadata was found
	done  bool // no deeper level matters
	end   bool // an opaque directory or something that hides directories was seen
}

// take adds the entry of level i and reports whether deeper levels matter.
func (c *collect) take(i int, st *unix.Stat_t) (more bool, err error) {
	c.m.src(i).asWhiteout(c.m.levels[i].fd, c.name, st)
	switch {
	case isWhiteout(st) && !c.m.src(i).raw:
		c.end = true
		if c.f == nil && c.m.keepWhiteouts {
			c.f = &found{m: c.m, name: c.name, st: *st, level: i}
		}
		return false, nil
	case !dirfd.IsDir(st):
		c.end = true
		if c.f == nil {
			c.f = &found{m: c.m, name: c.name, st: *st, level: i}
		}
		return false, nil
	}
	if c.f == nil {
		c.f = &found{m: c.m, name: c.name}
	}
	c.f.dirs = append(c.f.dirs, i)
	if !c.known {
		c.f.st, c.f.level = *st, i
	}
	if c.m.src(i).raw || i == len(c.m.levels)-1 && !c.m.keepWhiteouts {
		return true, nil
	}
	fd, err := dirfd.OpenDir(c.m.levels[i].fd, c.name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	// The metadata of a skeleton does not count: that of the next level does.
	c.known = c.known || !c.m.src(i).isSkeleton(fd)
	if isOpaque(fd) {
		c.end = true
		return false, nil
	}
	return true, nil
}

func (c *collect) result() (*found, error) {
	if c.f == nil {
		return nil, nil
	}
	c.f.opaque = c.end
	if dirfd.IsDir(&c.f.st) {
		if src := c.m.grafted(c.name); src != nil {
			c.f.alt = src
			return c.f, unix.Stat(src.dir, &c.f.st)
		}
	}
	return c.f, nil
}

// src is the tree that level i belongs to.
func (m *mdir) src(i int) *source { return &m.v.sources[m.levels[i].src] }

// sub opens the directory f. The caller closes it.
func (m *mdir) sub(f *found) (*mdir, error) {
	out, err := m.down(f.name)
	if err != nil {
		return nil, err
	}
	if err := out.graft(); err != nil {
		out.close()
		return nil, err
	}
	for _, i := range f.dirs {
		l := m.levels[i]
		fd, err := m.openSub(l, f.name)
		if errors.Is(err, unix.EXDEV) {
			continue // another file system of the host: shown as an empty directory
		}
		if err != nil {
			out.close()
			return nil, err
		}
		if m.v.sources[l.src].host {
			var st unix.Stat_t
			if unix.Fstat(fd, &st) == nil && (devIno{st.Dev, st.Ino}) == m.v.hide {
				unix.Close(fd)
				continue
			}
		}
		out.levels = append(out.levels, level{fd: fd, src: l.src})
	}
	return out, nil
}

func (m *mdir) openSub(l level, name string) (int, error) {
	if !m.v.sources[l.src].host || m.v.mounts[path.Join(m.path(), name)] {
		return dirfd.OpenDir(l.fd, name)
	}
	return dirfd.Open(l.fd, name, dirfd.DirFlags, dirfd.Beneath|dirfd.OneMount)
}

// path returns the entry's path in the view.
func (f *found) path() string { return f.asDir().path() }

// asDir returns the entry as a directory with nothing open, for its path.
func (f *found) asDir() *mdir {
	if f.name == "." {
		return f.m
	}
	return &mdir{up: f.m, name: f.name, size: f.size()}
}

// size returns the length of path.
func (f *found) size() int { return f.m.size + 1 + len(f.name) }

// String returns the path for messages; of a long path, only the end.
func (f *found) String() string { return f.asDir().String() }

func (f *found) dirfd() int { return f.m.levels[f.level].fd }

// open opens a regular file for reading.
func (f *found) open() (int, error) {
	fd, _, err := openFileAt(f.dirfd(), f.name)
	return fd, err
}

func (f *found) attrs() (attrs, error) {
	if dirfd.IsDir(&f.st) {
		var st unix.Stat_t
		return f.dirAttrs(&st)
	}
	return readAttrs(xattrAt(f.dirfd(), f.name), f.src().plain)
}

func (f *found) src() *source { return f.m.src(f.level) }

// dirAttrs reads a directory's state and attributes from the tree that they come from.
func (f *found) dirAttrs(st *unix.Stat_t) (attrs, error) {
	dir, name, plain := f.dirfd(), f.name, f.src().plain
	if f.alt != nil {
		dir, name, plain = unix.AT_FDCWD, f.alt.dir, f.alt.plain
	}
	fd, err := dirfd.OpenDir(dir, name)
	if err != nil {
		return attrs{}, err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, st); err != nil {
		return attrs{}, err
	}
	return readAttrs(xattrSource{fd: fd}, plain)
}

func (f *found) link() string {
	if !dirfd.IsLink(&f.st) {
		return ""
	}
	s, err := dirfd.Readlink(f.dirfd(), f.name)
	if err != nil {
		return ""
	}
	return s
}

func (f *found) entry() Entry {
	return Entry{Path: f.path(), Mode: f.st.Mode, UID: f.st.Uid, GID: f.st.Gid, Size: f.st.Size, Mtime: mtimeNs(&f.st),
		Rdev: f.st.Rdev, Link: f.link(), Layer: f.m.levels[f.level].src, Ino: f.st.Ino, Nlink: uint64(f.st.Nlink)} //nolint:unconvert // 32 bits wide on arm64
}
