package layer

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// The kinds of a Change.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M"
)

// Change is a path in which two views differ.
type Change struct {
	Kind   string // Added, Removed, Modified
	Path   string // absolute
	Type   string // file, dir, symlink, fifo, socket, device; of what is there now, else of what was
	Was    string // the same of what was there; "" is nothing
	Size   int64  // bytes, of what is there now
	Binary bool   // not text; with DiffOptions.Stat
	Lines  *Lines // of a text file; with DiffOptions.Stat

	a, b *side
}

// Lines counts the changed lines of a text file.
type Lines struct{ Added, Removed int }

// DiffOptions chooses what Changes reports.
type DiffOptions struct {
	Paths []string // only these and what is below them; none: all
	Stat  bool     // count lines
}

// side is what one view has at a path.
type side struct {
	view *View
	Entry
}

// Changes lists the paths in which b differs from a, sorted. touched are the
// trees in which they can differ at all: the layers that only one of them has,
// and live parts; nothing else is read. A directory that is gone is listed with
// everything that was in it. Files with the same content, owner, mode, time and
// attributes are no change, nor is a directory's time alone.
func Changes(ctx context.Context, a, b *View, touched []rootspec.Part, opts DiffOptions) ([]Change, error) {
	opts.Paths = slices.Clone(opts.Paths)
	for i, p := range opts.Paths {
		opts.Paths[i] = path.Clean("/" + p)
	}
	d := differ{ctx: ctx, a: a, b: b, opts: opts}
	ma, mb, err := bothRoots(a, b)
	if err != nil {
		return nil, fault.Wrap(err, "compare")
	}
	defer ma.close()
	defer mb.close()
	t, err := newTouched(touched)
	// A plain tree has no marks of what was removed: every name needs a look.
	t.all = a.plain() || b.plain()
	if err != nil {
		return nil, fault.Wrap(err, "compare")
	}
	defer t.close()
	fa, err := ma.self()
	if err == nil {
		var fb *found
		if fb, err = mb.self(); err == nil {
			fa.name, fb.name = ".", "."
			err = d.dirs(fa, fb)
		}
	}
	if err == nil {
		err = d.walk(ma, mb, t, 0)
	}
	if err != nil {
		return nil, fault.Wrap(err, "compare")
	}
	slices.SortFunc(d.out, func(x, y Change) int {
		return cmp.Or(comparePaths(x.Path, y.Path), cmp.Compare(x.Kind, y.Kind))
	})
	if opts.Stat {
		for i := range d.out {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := d.out[i].stat(); err != nil {
				return nil, fault.Wrap(err, "compare %q", d.out[i].Path)
			}
		}
	}
	return d.out, nil
}

func (v *View) plain() bool {
	return slices.ContainsFunc(v.sources, func(s source) bool { return s.plain })
}

func bothRoots(a, b *View) (*mdir, *mdir, error) {
	ma, err := a.root()
	if err != nil {
		return nil, nil, err
	}
	mb, err := b.root()
	if err != nil {
		ma.close()
		return nil, nil, err
	}
	return ma, mb, nil
}

func comparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// touchedDir is a directory of the trees in which views can differ: only names
// in one of them need a look. all says that every name does.
type touchedDir struct {
	m   *mdir
	all bool
}

func newTouched(parts []rootspec.Part) (touchedDir, error) {
	v := &View{}
	for _, p := range parts {
		v.sources = append(v.sources, source{dir: p.Dir, at: path.Clean(p.Path), raw: true})
	}
	m, err := v.root()
	return touchedDir{m: m}, err
}

func (t touchedDir) close() {
	if t.m != nil {
		t.m.close()
	}
}

// names lists the names to look at.
func (t touchedDir) names() (map[string]*found, error) {
	list, err := t.m.list()
	if err != nil {
		return nil, err
	}
	out := make(map[string]*found, len(list))
	for i := range list {
		out[list[i].name] = &list[i]
	}
	for i := range t.m.v.sources {
		if rel, ok := below(t.m.path, t.m.v.sources[i].at); ok && rel != "" {
			name, _, _ := strings.Cut(rel, "/")
			if out[name] == nil {
				out[name] = nil
			}
		}
	}
	return out, nil
}

type differ struct {
	ctx  context.Context
	a, b *View
	opts DiffOptions
	out  []Change
}

// wanted says whether p is chosen; within says whether something below may be.
func (d *differ) wanted(p string) bool {
	if len(d.opts.Paths) == 0 {
		return true
	}
	return slices.ContainsFunc(d.opts.Paths, func(w string) bool { _, ok := below(w, p); return ok })
}

func (d *differ) within(p string) bool {
	return d.wanted(p) || slices.ContainsFunc(d.opts.Paths, func(w string) bool { _, ok := below(p, w); return ok })
}

// walk compares two directories in the names that t holds. An opaque mark in a
// touched layer may have hidden any name, so there all are compared.
func (d *differ) walk(ma, mb *mdir, t touchedDir, depth int) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	la, err := listMap(ma)
	if err != nil {
		return err
	}
	lb, err := listMap(mb)
	if err != nil {
		return err
	}
	var names map[string]*found
	if !t.all {
		if names, err = t.names(); err != nil {
			return err
		}
	}
	look := func(name string) error {
		fa, fb := la[name], lb[name]
		p := path.Join(ma.path, name)
		if !d.within(p) {
			return nil
		}
		return d.entry(ma, mb, fa, fb, t, names[name], depth)
	}
	if !t.all {
		for name := range names {
			if err := look(name); err != nil {
				return err
			}
		}
		return nil
	}
	for name := range la {
		if err := look(name); err != nil {
			return err
		}
	}
	for name := range lb {
		if la[name] == nil {
			if err := look(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func listMap(m *mdir) (map[string]*found, error) {
	list, err := m.list()
	if err != nil {
		return nil, err
	}
	out := make(map[string]*found, len(list))
	for i := range list {
		out[list[i].name] = &list[i]
	}
	return out, nil
}

func (d *differ) entry(ma, mb *mdir, fa, fb *found, t touchedDir, tf *found, depth int) error {
	switch {
	case fa == nil && fb == nil:
		return nil
	case fa == nil:
		return d.whole(Added, mb, fb, depth)
	case fb == nil:
		return d.whole(Removed, ma, fa, depth)
	case isDir(&fa.st) != isDir(&fb.st):
		d.add(Modified, fa, fb)
		if isDir(&fa.st) {
			return d.inside(Removed, ma, fa, depth)
		}
		return d.inside(Added, mb, fb, depth)
	case isDir(&fa.st):
		if err := d.dirs(fa, fb); err != nil {
			return err
		}
		return d.descend(ma, mb, fa, fb, t, tf, depth)
	}
	same, err := sameFound(fa, fb)
	if err != nil {
		return fault.Wrap(err, "read %q", fa.path())
	}
	if !same {
		d.add(Modified, fa, fb)
	}
	return nil
}

// dirs compares two directories themselves.
func (d *differ) dirs(fa, fb *found) error {
	var sa, sb unix.Stat_t
	xa, err := fa.dirAttrs(&sa)
	if err != nil {
		return fault.Wrap(err, "read %q", fa.path())
	}
	xb, err := fb.dirAttrs(&sb)
	if err != nil {
		return fault.Wrap(err, "read %q", fb.path())
	}
	if sa.Mode != sb.Mode || sa.Uid != sb.Uid || sa.Gid != sb.Gid || !sameAttrs(xa.seen(), xb.seen()) {
		d.add(Modified, fa, fb)
	}
	return nil
}

// seen are the attributes without our own marks.
func (a attrs) seen() *attrs {
	a.list = slices.DeleteFunc(slices.Clone(a.list), func(x xattr) bool { return x.Key == xattrSkeleton })
	return &a
}

func (d *differ) descend(ma, mb *mdir, fa, fb *found, t touchedDir, tf *found, depth int) error {
	sa, err := ma.sub(fa)
	if err != nil {
		return fault.Wrap(err, "open %q", fa.path())
	}
	defer sa.close()
	sb, err := mb.sub(fb)
	if err != nil {
		return fault.Wrap(err, "open %q", fb.path())
	}
	defer sb.close()
	next := touchedDir{all: t.all}
	if !t.all {
		if next, err = t.sub(tf, fa.path()); err != nil {
			return fault.Wrap(err, "open %q", fa.path())
		}
	}
	defer next.close()
	deep := depth >= viewHeld
	if deep {
		ma.park()
		mb.park()
		t.close()
	}
	err = d.walk(sa, sb, next, depth+1)
	if deep {
		err = cmp.Or(err, ma.unpark(), mb.unpark())
		if t.m != nil {
			err = cmp.Or(err, t.m.unpark())
		}
	}
	return err
}

// sub opens a touched directory. A file of one layer and a directory of another,
// or an opaque mark, mean that anything below may differ.
func (t touchedDir) sub(tf *found, p string) (touchedDir, error) {
	m := &mdir{v: t.m.v, path: p}
	var err error
	if tf == nil {
		err = m.graft()
	} else {
		if !isDir(&tf.st) || tf.opaque {
			return touchedDir{all: true}, nil
		}
		m, err = t.m.sub(tf)
	}
	if err != nil {
		m.close()
		return touchedDir{}, err
	}
	for _, l := range m.levels {
		if isOpaque(l.fd) {
			m.close()
			return touchedDir{all: true}, nil
		}
	}
	return touchedDir{m: m}, nil
}

// whole reports an entry and everything in it.
func (d *differ) whole(kind string, m *mdir, f *found, depth int) error {
	if kind == Added {
		d.add(kind, nil, f)
	} else {
		d.add(kind, f, nil)
	}
	if !isDir(&f.st) {
		return nil
	}
	return d.inside(kind, m, f, depth)
}

// inside reports everything in a directory.
func (d *differ) inside(kind string, m *mdir, f *found, depth int) error {
	sub, err := m.sub(f)
	if err != nil {
		return fault.Wrap(err, "open %q", f.path())
	}
	defer sub.close()
	if depth >= viewHeld {
		m.park()
		defer m.unpark() //nolint:errcheck // the next use of m fails, and says so
	}
	return sub.walk(d.ctx, depth+1, func(_ *mdir, g *found) error {
		if kind == Added {
			d.add(kind, nil, g)
		} else {
			d.add(kind, g, nil)
		}
		return nil
	})
}

func (d *differ) add(kind string, fa, fb *found) {
	f := fb
	if f == nil {
		f = fa
	}
	p := path.Clean(f.path())
	if !d.wanted(p) {
		return
	}
	c := Change{Kind: kind, Path: p, Type: typeName(f.st.Mode)}
	if fa != nil {
		c.a, c.Was = &side{d.a, fa.entry()}, typeName(fa.st.Mode)
	}
	if fb != nil {
		c.b = &side{d.b, fb.entry()}
		if isReg(&fb.st) {
			c.Size = fb.st.Size
		}
	}
	d.out = append(d.out, c)
}

func typeName(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "dir"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// sameFound compares two entries that are no directories.
func sameFound(fa, fb *found) (bool, error) {
	if fa.st.Dev == fb.st.Dev && fa.st.Ino == fb.st.Ino {
		return true, nil // the same file of a shared layer, or a merged one
	}
	return sameEntry(fa.dirfd(), fa.name, fa.src().plain, fb.dirfd(), fb.name, fb.src().plain)
}
