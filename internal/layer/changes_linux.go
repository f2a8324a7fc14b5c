package layer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
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
	Type   string // file, dir, symlink, fifo, socket, device; of the new entry, else of the old one
	Was    string // type of the old entry; "": none
	Size   int64  // bytes, of the new entry, else of the old one
	Binary bool   // not text; with DiffOptions.Stat
	Lines  *Lines // of a text file; with DiffOptions.Stat

	a, b *found // valid while EachChange reports it; nil if there is no entry
	turn turn   // held while they are compared
}

// Lines counts the changed lines of a text file.
type Lines struct{ Added, Removed int }

// DiffOptions chooses what a comparison reports, and how much of it.
type DiffOptions struct {
	Paths []string // only these paths and those below them; empty: all
	Stat  bool     // count lines
	Most  int      // maximum number of changes; 0: limit.DiffEntries
	Bytes int      // maximum bytes of their paths; 0: limit.DiffBytes

	Ignore   Ignored
	Timeless bool // times of entries do not count

	names    int  // maximum entries of one directory held for each side; 0: limit.DirNames
	contents bool // leave out directories that only one side has
}

// Ignored describes differences of directories that no process caused: an overlay that an ordinary user mounts gives
// that user the directories that it copies up.
type Ignored struct {
	// Roots are absolute paths of directories whose owner does not count. A user who cannot set the owner cannot keep
	// the rest either, so two more things do not count: the owner's permissions, if they are those of that user, and
	// attributes, except emulated owners.
	Roots  map[string]bool
	Owners bool // the owner of a directory does not count
	// Files are absolute paths of regular files of which only the permissions count, if they are regular in both.
	Files map[string]bool
}

// errMore ends a comparison that has reported as many changes as allowed.
var errMore = errors.New("too many changes")

// Some returns the first changes from a to b, in the order of their paths. more reports that it left some out
// because opts.Most or opts.Bytes was reached. touched is as for EachChange.
func Some(
	ctx context.Context, a, b *View, touched []rootspec.Part, opts DiffOptions,
) (list []Change, more bool, err error) {
	err = eachChange(ctx, a, b, touched, opts, func(c *Change) error {
		kept := *c
		kept.a, kept.b, kept.turn = nil, nil, nil
		list = append(list, kept)
		return nil
	})
	if errors.Is(err, errMore) {
		return list, true, nil
	}
	return list, false, err
}

// Changes returns all changes from a to b, in the order of their paths. TooLarge if there
// are more than opts allows.
func Changes(ctx context.Context, a, b *View, touched []rootspec.Part, opts DiffOptions) ([]Change, error) {
	list, more, err := Some(ctx, a, b, touched, opts)
	if more {
		return nil, opts.tooMany()
	}
	return list, err
}

// EachChange calls fn for each path in which b differs from a, in the order of the paths. After the calls, it
// returns TooLarge if there are more than opts allows. touched are the trees in which the views can differ at
// all: the layers that only one of them has, and live parts; nothing else is read. A directory that was
// removed is reported with everything that was in it. Files with the same content, owner, mode, time and
// attributes do not differ, nor do directories that differ only in time.
func EachChange(
	ctx context.Context, a, b *View, touched []rootspec.Part, opts DiffOptions, fn func(*Change) error,
) error {
	err := eachChange(ctx, a, b, touched, opts, fn)
	if errors.Is(err, errMore) {
		return opts.tooMany()
	}
	return err
}

func (o DiffOptions) tooMany() error {
	return fault.New(fault.TooLarge, "compare: more than %d paths, or %d bytes of paths, differ",
		cmp.Or(o.Most, limit.DiffEntries), cmp.Or(o.Bytes, limit.DiffBytes)).
		WithHint("compare fewer paths: coppice diff NAME -- PATH")
}

func eachChange(
	ctx context.Context, a, b *View, touched []rootspec.Part, opts DiffOptions, fn func(*Change) error,
) error {
	d := differ{ctx: ctx, fn: fn, turn: cmp.Or(a.turn, b.turn), stat: opts.Stat, ignore: opts.Ignore,
		timeless: opts.Timeless,
		contents: opts.contents,
		entries:  cmp.Or(opts.Most, limit.DiffEntries), bytes: cmp.Or(opts.Bytes, limit.DiffBytes),
		names: cmp.Or(opts.names, limit.DirNames)}
	at := newPlaces(opts.Paths)
	if at.none() {
		at = everywhere()
	}
	err := d.views(a, b, touched, at)
	if errors.Is(err, errMore) {
		return err
	}
	return fault.Wrap(err, "compare")
}

func (d *differ) views(a, b *View, touched []rootspec.Part, at places) error {
	ma, mb, err := bothRoots(a, b)
	if err != nil {
		return err
	}
	defer ma.close()
	defer mb.close()
	t, err := newTouched(touched)
	if err != nil {
		return err
	}
	defer t.close()
	// A plain tree does not mark removals: every name must be compared.
	t.all = a.plain() || b.plain()
	fa, err := ma.self()
	if err != nil {
		return err
	}
	fb, err := mb.self()
	if err != nil {
		return err
	}
	if err := d.dirs(fa, fb, at); err != nil {
		return err
	}
	return d.walk(ma, mb, t, at, 0)
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

// touchedDir is a directory of the trees in which two views can differ. Only names in one of these trees are
// compared; if all is set, every name is.
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

// park and unpark are mdir.park and mdir.unpark, for the child directory next.
func (t touchedDir) park(next touchedDir) error {
	if t.m == nil || next.m == nil {
		return nil
	}
	return t.m.park(next.m)
}

func (t touchedDir) unpark(next touchedDir) error {
	if t.m == nil || next.m == nil {
		return nil
	}
	return t.m.unpark(next.m)
}

func (t touchedDir) close() {
	if t.m != nil {
		t.m.close()
	}
}

// names lists the names to compare. It returns TooLarge if there are more than most.
func (t touchedDir) names(ctx context.Context, most int) (map[string]*found, error) {
	list, err := t.m.list(ctx, most)
	if err != nil {
		return nil, err
	}
	out := make(map[string]*found, len(list))
	for i := range list {
		out[list[i].name] = &list[i]
	}
	for _, g := range t.m.grafts {
		if name, _, _ := strings.Cut(g.rel, "/"); name != "" && out[name] == nil {
			out[name] = nil
		}
	}
	return out, nil
}

// differ compares two views, and reports at most entries changes with at most bytes bytes of paths.
type differ struct {
	ignore         Ignored
	ctx            context.Context
	fn             func(*Change) error
	turn           turn
	stat, contents bool
	entries, bytes int // still allowed in reports
	names          int // maximum of one directory, held in memory
	timeless       bool
}

// walk compares the entries of two directories whose names t holds. An opaque mark in a touched layer may have hidden
// any name, so below it all names are compared.
func (d *differ) walk(ma, mb *mdir, t touchedDir, at places, depth int) error {
	p, err := d.pairs(ma, mb, t)
	if err != nil {
		return err
	}
	for _, name := range p.names {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		in, chosen := at.in(name)
		if !chosen {
			continue
		}
		fa, fb, err := p.of(name)
		if err != nil {
			return fault.Wrap(err, "read %q", &found{m: mb, name: name})
		}
		err = d.entry(ma, mb, fa, fb, t, p.touched[name], in, depth)
		if errors.Is(err, errLost) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pairs are the names to compare in two directories, in order, with their entries.
type pairs struct {
	names   []string
	touched map[string]*found // of a touched directory
	of      func(name string) (fa, fb *found, err error)
}

// pairs returns the names in t, and looks each up, so that the cost grows with the possible differences and
// not with the directories; or it returns all names.
func (d *differ) pairs(ma, mb *mdir, t touchedDir) (p pairs, err error) {
	if !t.all {
		p.touched, err = t.names(d.ctx, d.names)
		p.names = slices.Sorted(maps.Keys(p.touched))
		p.of = func(name string) (*found, *found, error) {
			fa, err := ma.child(name)
			if err != nil {
				return nil, nil, err
			}
			fb, err := mb.child(name)
			return fa, fb, err
		}
		return p, err
	}
	la, err := ma.list(d.ctx, d.names)
	if err != nil {
		return p, err
	}
	lb, err := mb.list(d.ctx, d.names)
	if err != nil {
		return p, err
	}
	for _, list := range [][]found{la, lb} {
		for i := range list {
			p.names = append(p.names, list[i].name)
		}
	}
	slices.Sort(p.names)
	p.names = slices.Compact(p.names)
	p.of = func(name string) (*found, *found, error) { return named(la, name), named(lb, name), nil }
	return p, nil
}

// named returns the entry with that name in a sorted list; nil if there is none.
func named(list []found, name string) *found {
	i, has := slices.BinarySearchFunc(list, name, func(f found, name string) int { return strings.Compare(f.name, name) })
	if !has {
		return nil
	}
	return &list[i]
}

func (d *differ) entry(ma, mb *mdir, fa, fb *found, t touchedDir, tf *found, at places, depth int) error {
	switch {
	case fa == nil && fb == nil:
		return nil
	case fa == nil:
		return d.whole(Added, mb, fb, at, depth)
	case fb == nil:
		return d.whole(Removed, ma, fa, at, depth)
	case dirfd.IsDir(&fa.st) != dirfd.IsDir(&fb.st):
		if err := d.report(Modified, fa, fb, at); err != nil {
			return err
		}
		if dirfd.IsDir(&fa.st) {
			return d.inside(Removed, ma, fa, at, depth)
		}
		return d.inside(Added, mb, fb, at, depth)
	case dirfd.IsDir(&fa.st):
		if err := d.dirs(fa, fb, at); err != nil {
			return err
		}
		return d.descend(ma, mb, fa, fb, t, tf, at, depth)
	}
	if d.ignore.Files[fb.path()] && fa.st.Mode&unix.S_IFMT == unix.S_IFREG && fa.st.Mode == fb.st.Mode {
		return nil
	}
	same, err := sameFound(d.ctx, fa, fb, !d.timeless)
	if err != nil {
		return fault.Wrap(err, "read %q", fa)
	}
	if same {
		return nil
	}
	return d.report(Modified, fa, fb, at)
}

// dirs compares two directories themselves.
func (d *differ) dirs(fa, fb *found, at places) error {
	var sa, sb unix.Stat_t
	xa, err := fa.dirAttrs(&sa)
	if err != nil {
		return fault.Wrap(err, "read %q", fa)
	}
	xb, err := fb.dirAttrs(&sb)
	if err != nil {
		return fault.Wrap(err, "read %q", fb)
	}
	if d.ignore.Roots[fb.path()] {
		if sameRootMode(fa, fb, &sa, &sb) && sameAttrs(xa.owners(), xb.owners()) {
			return nil
		}
		return d.report(Modified, fa, fb, at)
	}
	owner := d.ignore.Owners || sa.Uid == sb.Uid && sa.Gid == sb.Gid
	if sa.Mode == sb.Mode && owner && sameAttrs(xa.seen(), xb.seen()) {
		return nil
	}
	return d.report(Modified, fa, fb, at)
}

// sameRootMode compares the modes of two roots. If one of them could not get the owner of the other, its owner's
// permissions must be the caller's access to the other.
func sameRootMode(fa, fb *found, sa, sb *unix.Stat_t) bool {
	differ := sa.Mode ^ sb.Mode
	switch {
	case differ&^0o700 != 0:
		return false
	case differ == 0:
		return true
	case sa.Uid == sb.Uid:
		return false
	}
	return fa.access() == sb.Mode>>6&7 || fb.access() == sa.Mode>>6&7
}

// access returns what the caller may do with a directory, as permission bits.
func (f *found) access() (bits uint32) {
	dir, name := f.dirfd(), f.name
	if f.alt != nil {
		dir, name = unix.AT_FDCWD, f.alt.dir
	}
	for _, b := range []uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
		if unix.Faccessat(dir, name, b, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW) == nil {
			bits |= b
		}
	}
	return bits
}

// owners returns the attributes in which root emulation stores the owner.
func (a attrs) owners() *attrs {
	a.list = slices.DeleteFunc(slices.Clone(a.list), func(x xattr) bool { return x.Key != xattrOwner })
	return &a
}

// seen returns the attributes without Coppice's own marks.
func (a attrs) seen() *attrs {
	a.list = slices.DeleteFunc(slices.Clone(a.list), isMark)
	return &a
}

func (d *differ) descend(ma, mb *mdir, fa, fb *found, t touchedDir, tf *found, at places, depth int) error {
	sa, err := ma.sub(fa)
	if err != nil {
		return fault.Wrap(err, "open %q", fa)
	}
	defer sa.close()
	sb, err := mb.sub(fb)
	if err != nil {
		return fault.Wrap(err, "open %q", fb)
	}
	defer sb.close()
	next := touchedDir{all: t.all}
	if !t.all {
		if next, err = t.sub(tf, fa.name); err != nil {
			return fault.Wrap(err, "open %q", fa)
		}
	}
	defer next.close()
	if depth < viewHeld {
		return d.walk(sa, sb, next, at, depth+1)
	}
	if err := cmp.Or(ma.park(sa), mb.park(sb), t.park(next)); err != nil {
		return err
	}
	if err := d.walk(sa, sb, next, at, depth+1); err != nil {
		return err
	}
	return cmp.Or(ma.unpark(sa), mb.unpark(sb), t.unpark(next))
}

// sub opens a touched directory. After a file of one layer and a directory of another, or an opaque mark, anything
// below may differ.
func (t touchedDir) sub(tf *found, name string) (touchedDir, error) {
	if tf != nil && (!dirfd.IsDir(&tf.st) || tf.opaque) {
		return touchedDir{all: true}, nil
	}
	if tf == nil {
		tf = &found{m: t.m, name: name}
	}
	m, err := t.m.sub(tf)
	if err != nil {
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
func (d *differ) whole(kind string, m *mdir, f *found, at places, depth int) error {
	if err := d.one(kind, f, at); err != nil {
		return err
	}
	if !dirfd.IsDir(&f.st) {
		return nil
	}
	return d.inside(kind, m, f, at, depth)
}

// one reports an entry that only one side has.
func (d *differ) one(kind string, f *found, at places) error {
	if kind == Added {
		return d.report(kind, nil, f, at)
	}
	return d.report(kind, f, nil, at)
}

// inside reports every entry of a directory that only one side has.
func (d *differ) inside(kind string, m *mdir, f *found, at places, depth int) error {
	sub, err := m.sub(f)
	if m.gone(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open %q", f)
	}
	defer sub.close()
	return m.inside(sub, depth, func() error {
		list, err := sub.list(d.ctx, d.names)
		if m.gone(err) {
			return nil
		}
		if err != nil {
			return fault.Wrap(err, "list %q", sub)
		}
		for i := range list {
			if err := d.ctx.Err(); err != nil {
				return err
			}
			in, chosen := at.in(list[i].name)
			if !chosen {
				continue
			}
			if err := d.whole(kind, sub, &list[i], in, depth+1); errors.Is(err, errLost) {
				return nil
			} else if err != nil {
				return err
			}
		}
		return nil
	})
}

// report passes one change to fn, unless at has only paths below it. To save memory, the path is joined only here,
// after the limits were checked.
func (d *differ) report(kind string, fa, fb *found, at places) error {
	f := cmp.Or(fb, fa)
	if !at.here() || d.contents && dirfd.IsDir(&f.st) && (fa == nil || fb == nil) {
		return nil
	}
	if d.entries--; d.entries < 0 {
		return errMore
	}
	if d.bytes -= f.size(); d.bytes < 0 {
		return errMore
	}
	c := Change{Kind: kind, Path: f.path(), Type: typeName(f.st.Mode), a: fa, b: fb, turn: d.turn}
	if fa != nil {
		c.Was = typeName(fa.st.Mode)
	}
	if dirfd.IsRegular(&f.st) {
		c.Size = f.st.Size
	}
	if d.stat {
		if err := c.stat(d.ctx); err != nil {
			return fault.Wrap(err, "compare %q", f)
		}
	}
	return d.fn(&c)
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

// sameFound compares two entries that are not directories; times reports whether their times count.
func sameFound(ctx context.Context, fa, fb *found, times bool) (bool, error) {
	if fa.st.Dev == fb.st.Dev && fa.st.Ino == fb.st.Ino {
		return true, nil // the same file of a shared layer, or a merged one
	}
	return sameEntry(ctx, fa.dirfd(), fa.name, fa.src().plain, fb.dirfd(), fb.name, fb.src().plain, times)
}
