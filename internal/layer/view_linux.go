package layer

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// View is the merged, read-only content of a stack, read from the layers' trees without a mount. It holds no
// descriptors between calls and is safe for concurrent use. Paths are absolute; symbolic links in them are
// not followed.
type View struct {
	sources []source        // topmost first
	mounts  map[string]bool // mount points of the host that are crossed
	hide    devIno
	live    bool // the trees change meanwhile: a walk skips what disappears
	turn    turn // for one comparison by lines at a time in a store
}

// source is one of the trees of a view.
type source struct {
	dir     string // host path
	at      string // the path of its root in the view
	host    bool   // the host's own root
	raw     bool   // whiteouts and opaque marks have no meaning
	plain   bool   // not in overlay form: programs have set the attributes with overlayfs's names
	marks1  bool   // of an earlier version, in which xattrSkeleton1 marks a skeleton
	byFiles bool   // removals are files: see rootspec.MarksFiles
}

// Entry is an entry of a view.
type Entry struct {
	Path  string // absolute, clean
	Mode  uint32 // as in stat(2), with the type bits
	UID   uint32
	GID   uint32
	Size  int64
	Mtime int64 // nanoseconds since 1970
	Rdev  uint64
	Link  string // target of a symbolic link
	Layer int    // index of the tree of the view that has it, topmost first
	Ino   uint64 // with Layer, equal for all names of one file
	Nlink uint64 // names of the file in the store, which may be more than in the view
}

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.Mode&unix.S_IFMT == unix.S_IFDIR }

// View returns a view of a stack. With stack.Host the host's root is at the bottom; it is not read across a
// mount point unless the mount point is one of mounts (absolute paths: the parts of the live root), and the
// store itself is hidden.
func (s *Store) View(stack rootspec.Stack, mounts ...string) *View {
	v := &View{hide: s.storeID, turn: s.turn}
	for _, l := range stack.Layers {
		v.sources = append(v.sources, layerSource(l))
	}
	if stack.Host {
		v.sources = append(v.sources, source{dir: "/", at: "/", host: true})
	}
	if len(mounts) > 0 {
		v.mounts = map[string]bool{}
		for _, m := range mounts {
			v.mounts[path.Clean(m)] = true
		}
	}
	return v
}

// LiveView returns a view of a stack with the overlay uppers of a live root on it. What processes change
// meanwhile may or may not be visible.
func (s *Store) LiveView(stack rootspec.Stack, parts []rootspec.Part) *View {
	var mounts []string
	var tops []source
	for _, p := range parts {
		tops = append(tops, source{dir: p.Dir, at: path.Clean(p.Path)})
		if tops[len(tops)-1].at != "/" {
			mounts = append(mounts, p.Path)
		}
	}
	v := s.View(stack, mounts...)
	v.sources = append(tops, v.sources...)
	return v
}

// PlainView returns a view of the plain trees of a live root.
func (s *Store) PlainView(parts []rootspec.Part) *View {
	v := &View{turn: s.turn}
	for _, p := range parts {
		v.sources = append(v.sources, source{dir: p.Dir, at: path.Clean(p.Path), raw: true, plain: true})
	}
	return v
}

// layerSource returns the tree of a layer. A missing tree, which cannot be read anyway, counts as one of an earlier
// version.
func layerSource(tree string) source {
	marks := rootspec.Marks(tree)
	return source{dir: tree, at: "/", marks1: marks == "", byFiles: marks == rootspec.MarksFiles}
}

// rawView returns a view of one tree as it is, in overlay form or not.
func rawView(dir string, plain bool) *View {
	return &View{sources: []source{{dir: dir, at: "/", raw: true, plain: plain,
		byFiles: !plain && rootspec.Marks(dir) == rootspec.MarksFiles}}}
}

// Lookup returns the entry at p. It returns NotFound if there is none.
func (v *View) Lookup(p string) (Entry, error) {
	var e Entry
	err := v.at(p, func(m *mdir, f *found) error { e = f.entry(); return nil })
	return e, err
}

// ReadDir returns the entries of the directory p, sorted by name.
func (v *View) ReadDir(ctx context.Context, p string) ([]Entry, error) {
	m, err := v.dir(p)
	if err != nil {
		return nil, err
	}
	defer m.close()
	list, err := m.list(ctx, math.MaxInt)
	if err != nil {
		return nil, fault.Wrap(err, "list %q", p)
	}
	out := make([]Entry, len(list))
	for i := range list {
		out[i] = list[i].entry()
	}
	return out, nil
}

// Open opens the regular file at p for reading. The caller closes it.
func (v *View) Open(p string) (out *os.File, err error) {
	err = v.at(p, func(_ *mdir, f *found) (err error) {
		out, err = f.openFile()
		return err
	})
	return out, err
}

// Xattrs returns the extended attributes of the entry at p as programs inside see them.
func (v *View) Xattrs(p string) (out map[string][]byte, err error) {
	err = v.at(p, func(_ *mdir, f *found) (err error) {
		out, err = f.xattrs()
		return err
	})
	return out, err
}

// Walk calls fn for every entry below the root, parents before children, names in order. If fn returns
// fs.SkipDir for a directory, its content is skipped; any other error ends the walk.
func (v *View) Walk(ctx context.Context, fn func(Entry) error) error {
	return v.walk(ctx, func(m *mdir, f *found) error { return fn(f.entry()) })
}

func (v *View) walk(ctx context.Context, fn func(*mdir, *found) error) error {
	m, err := v.root()
	if err != nil {
		return err
	}
	defer m.close()
	return m.walk(ctx, 0, fn)
}

func (m *mdir) walk(ctx context.Context, depth int, fn func(*mdir, *found) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	list, err := m.list(ctx, math.MaxInt)
	if m.gone(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "list %q", m)
	}
	for i := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		f := &list[i]
		err := fn(m, f)
		if errors.Is(err, fs.SkipDir) && dirfd.IsDir(&f.st) {
			continue
		}
		if err != nil {
			return err
		}
		if !dirfd.IsDir(&f.st) {
			continue
		}
		sub, err := m.sub(f)
		if m.gone(err) {
			continue
		}
		if err != nil {
			return fault.Wrap(err, "open %q", f)
		}
		err = m.inside(sub, depth, func() error { return sub.walk(ctx, depth+1, fn) })
		sub.close()
		if errors.Is(err, errLost) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inside runs fn for sub, a directory in m. Deep in a tree m is parked meanwhile, and opened again.
func (m *mdir) inside(sub *mdir, depth int, fn func() error) error {
	if depth < viewHeld {
		return fn()
	}
	if err := m.park(sub); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	err := m.unpark(sub)
	if m.gone(err) {
		return errLost
	}
	return err
}

// errLost is the error of a directory of a live tree that was moved or removed while a walk
// was below it.
var errLost = errors.New("the directory was moved or removed while it was read")

// gone reports whether err means that an entry of a live tree was moved or removed.
func (m *mdir) gone(err error) bool { return m.v.live && moved(err) }

// at calls fn with the entry at p while its directory is open. The root has the name ".".
func (v *View) at(p string, fn func(*mdir, *found) error) error {
	p = path.Clean("/" + p)
	dir, name := path.Split(p)
	m, err := v.dir(dir)
	if err != nil {
		return err
	}
	defer m.close()
	if name == "" {
		f, err := m.self()
		if err != nil {
			return fault.Wrap(err, "read %q", p)
		}
		return fn(m, f)
	}
	f, err := m.child(name)
	if err != nil {
		return fault.Wrap(err, "read %q", p)
	}
	if f == nil {
		return notFound(p)
	}
	return fn(m, f)
}

func notFound(p string) error { return fault.New(fault.NotFound, "%q does not exist", p) }

// dir opens the merged directory at p. The caller closes it.
func (v *View) dir(p string) (*mdir, error) {
	m, err := v.root()
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.Trim(path.Clean("/"+p), "/"), "/") {
		if name == "" {
			continue
		}
		f, err := m.child(name)
		switch {
		case err != nil:
		case f == nil:
			err = notFound(p)
		case !dirfd.IsDir(&f.st):
			err = fault.New(fault.NotFound, "%q is not a directory", f)
		default:
			var sub *mdir
			if sub, err = m.sub(f); err == nil {
				m.close()
				m = sub
				continue
			}
		}
		m.close()
		return nil, fault.Wrap(err, "open %q", p)
	}
	return m, nil
}
