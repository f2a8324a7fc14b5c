package layer

import (
	"context"
	"path"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Refreshed is the result of Refresh.
type Refreshed struct {
	Report      // Entries counts the differences
	Empty  bool // nothing differed, and no layer was made
}

// Refresh makes layer id from the differences of the directory src since an earlier import, whose index is since and
// whose result is base. On top of base, the layer shows what ImportDir would import with the same options. Entries
// that cannot be read are listed as in ImportDir, whether they are new or not. After a failure nothing is left behind
// and since stays valid.
func (s *Store) Refresh(
	ctx context.Context, id timeline.LayerID, src string, since *Index, base *View, opts ImportOptions,
) (out Refreshed, err error) {
	src, c, err := s.importer(ctx, id, src, opts)
	if err != nil {
		return out, fault.Wrap(err, "refresh the copy of %s", src)
	}
	old := since.root(src)
	if old == nil {
		return out, fault.New(fault.Invalid, "refresh the copy of %s: the index is of another directory", src)
	}
	b, err := s.begin(ctx, id)
	if err != nil {
		return out, fault.Wrap(err, "refresh the copy of %s", src)
	}
	defer b.undo.Run(&err)
	c.linkDir = b.links
	r := refresher{copier: c, base: base, fs: b.fs}
	stop := c.tick(opts.Progress)
	root, err := r.root(rawView(src, true), old)
	stop()
	if err == nil && r.made.Load() {
		err = b.finish(ctx)
	}
	if err != nil {
		return out, fault.Wrap(err, "refresh the copy of %s", src)
	}
	return Refreshed{Report: c.report(root), Empty: !r.made.Load()}, nil
}

// refresher compares a tree with the index of an earlier import, and copies the differences.
type refresher struct {
	*copier
	base *View
	fs   int         // the new layer's tree, open
	made atomic.Bool // the layer is not empty

	mu     sync.Mutex   // held while directories are made
	linked []linkedName // guarded by mu
}

// linkedName is an unchanged name of a file with several names.
type linkedName struct {
	key  devIno
	at   *spot
	name string
	ent  *ent
}

// spot is a directory of the new layer. It is made when something in it differs, so unchanged directories cost
// nothing.
type spot struct {
	up   *spot // nil: the layer's root
	name string
	made bool // guarded by refresher.mu
}

func (p *spot) path() string {
	if p.up == nil {
		return "/"
	}
	return path.Join(p.up.path(), p.name)
}

// open opens a spot, and makes it and the directories above it if they are missing. The caller closes it.
func (r *refresher) open(p *spot) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made.Store(true)
	return r.openLocked(p)
}

func (r *refresher) openLocked(p *spot) (int, error) {
	if p.up == nil {
		p.made = true
		return dirfd.OpenDir(r.fs, ".")
	}
	up, err := r.openLocked(p.up)
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	if !p.made {
		if err := r.s.fs.Mkdir(up, p.name, 0o700); err != nil {
			return -1, err
		}
		p.made = true
	}
	return dirfd.OpenDir(up, p.name)
}

func (r *refresher) isMade(p *spot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.made
}

func (r *refresher) root(v *View, old *rootEnt) (root rootEnt, err error) {
	root.path = old.path
	src, err := v.root()
	if err != nil {
		return root, err
	}
	defer src.close()
	f, err := src.self()
	if err != nil {
		return root, err
	}
	at := &spot{}
	root.self = r.ent(&f.st)
	how, err := r.dirDiffers(src.levels[0].fd, f, &root.self, &old.self, false)
	if err != nil {
		return root, err
	}
	if root.node, err = r.dir(src, old.node, at, 0); err != nil {
		return root, err
	}
	if err := r.finish(src.levels[0].fd, f, at, how); err != nil {
		return root, err
	}
	return root, r.rejoin(v)
}

// dir compares the directory that src shows with its node in the index, and returns its new node.
func (r *refresher) dir(src *mdir, old *dirNode, at *spot, depth int) (*dirNode, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	list, node, err := r.list(src)
	if err != nil {
		return nil, err
	}
	d := r.compare(list, node, old, at)
	if err := r.write(src, &d, node, at, depth); err != nil {
		return nil, err
	}
	var g group
	for _, k := range d.known {
		if g.failed() {
			break
		}
		work := func(inline bool) (err error) {
			node.kids[k.kid], err = r.known(src, k, old.kids[k.old.kid], at, depth, inline)
			return err
		}
		if depth < viewHeld && r.take() {
			g.start(func() error { return work(false) }, &r.crew)
			continue
		}
		if depth >= viewHeld {
			g.note(g.wait()) // src must not be used by another goroutine while it is parked
		}
		g.note(work(true))
	}
	return node, g.wait()
}

// difference is the result of compare for one directory.
type difference struct {
	files []differing // new or changed, not directories
	dirs  []pending   // directories that are not in the index
	known []differing // directories that are in the index
	gone  []string
}

// differing is an entry; old is its entry in the index, if there is one.
type differing struct {
	pending
	old *ent
}

// kept reports whether the layers below have the old entry.
func (d *differing) kept() bool { return d.old != nil && d.old.flags&entMissing == 0 }

// compare sorts the entries of a directory into the lists of a difference. Both nodes have their entries sorted by
// name.
func (r *refresher) compare(list []found, node, old *dirNode, at *spot) (d difference) {
	j := 0
	pass := func(upTo string, all bool) {
		for ; j < len(old.ents) && (all || string(old.name(&old.ents[j])) < upTo); j++ {
			if e := &old.ents[j]; e.flags&entMissing == 0 {
				d.gone = append(d.gone, string(old.name(e)))
			}
		}
	}
	for i := range list {
		x := differing{pending: pending{found: &list[i], ent: &node.ents[i]}}
		pass(x.name, false)
		if j < len(old.ents) && string(old.name(&old.ents[j])) == x.name {
			x.old = &old.ents[j]
			j++
		}
		if dirfd.IsDir(&x.st) {
			x.kid = len(node.kids)
			x.ent.kid = uint32(x.kid)
			node.kids = append(node.kids, nil)
			if x.old != nil && x.old.isDir() {
				d.known = append(d.known, x)
			} else {
				d.dirs = append(d.dirs, x.pending)
			}
			continue
		}
		switch {
		case !r.unchanged(&x):
			d.files = append(d.files, x)
		case x.st.Nlink > 1 && x.kept():
			r.mu.Lock()
			r.linked = append(r.linked, linkedName{devIno{x.st.Dev, x.st.Ino}, at, x.name, x.ent})
			r.mu.Unlock()
		}
	}
	pass("", true)
	return d
}

// unchanged reports whether an entry that is not a directory has not changed. One that could not be imported before
// counts as changed if it may be readable now.
func (r *refresher) unchanged(x *differing) bool {
	if x.old == nil || x.old.isDir() || !x.old.same(&x.st) {
		return false
	}
	if x.old.flags&entMissing != 0 {
		return r.stillMissing(x)
	}
	return x.old.flags&entRacy == 0 || r.sameAsBase(x.found)
}

// stillMissing reports whether an entry that could not be imported before still cannot be, and notes it.
func (r *refresher) stillMissing(x *differing) bool {
	switch x.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, _, err := openFileAt(x.dirfd(), x.name)
		if err == nil {
			unix.Close(fd)
			return false
		}
	case unix.S_IFCHR, unix.S_IFBLK:
	default:
		return false
	}
	r.leaveOut(x.pending)
	return true
}

// sameAsBase compares an entry whose stat has not changed with its copy in base. If that fails, the entry counts as
// changed.
func (r *refresher) sameAsBase(f *found) (same bool) {
	err := r.base.at(f.path(), func(_ *mdir, g *found) (err error) {
		if g.st.Mode&unix.S_IFMT == f.st.Mode&unix.S_IFMT {
			same, err = sameWithin(r.ctx, f, g)
		}
		return err
	})
	return err == nil && same
}

// sameWithin compares two entries of one type in what stat does not show. An owner that could not be set is not a
// difference.
func sameWithin(ctx context.Context, f, g *found) (bool, error) {
	if dirfd.IsLink(&f.st) {
		return f.link() == g.link(), nil
	}
	if !dirfd.IsRegular(&f.st) {
		return true, nil
	}
	a, err := f.attrs()
	if err != nil {
		return false, err
	}
	b, err := g.attrs()
	if err != nil || f.st.Size != g.st.Size || !sameAttrs(&a, &b) {
		return false, err
	}
	fa, err := f.open()
	if err != nil {
		return false, err
	}
	defer unix.Close(fa)
	fb, err := g.open()
	if err != nil {
		return false, err
	}
	defer unix.Close(fb)
	return sameContent(ctx, fa, fb, f.st.Size)
}

// write writes the differences of one directory to the new layer.
func (r *refresher) write(src *mdir, d *difference, node *dirNode, at *spot, depth int) error {
	if len(d.files)+len(d.dirs)+len(d.gone) == 0 {
		return nil
	}
	fd, err := r.open(at)
	if err != nil {
		return fault.Wrap(err, "create directory %q", src)
	}
	out := &outDir{fd: fd}
	defer out.close()
	for _, name := range d.gone {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := r.remove(out.fd, name); err != nil {
			return fault.Wrap(err, "record removal of %q in %q", name, src)
		}
	}
	files := make([]pending, len(d.files))
	for i := range files {
		files[i] = d.files[i].pending
	}
	var g group
	r.files(&g, files, out.fd, false)
	if err := g.wait(); err != nil {
		return err
	}
	for i := range d.files {
		// A full import would not have an entry that has become unreadable either.
		if x := &d.files[i]; x.ent.flags&entMissing != 0 && x.kept() {
			if err := r.remove(out.fd, x.name); err != nil {
				return fault.Wrap(err, "record removal of %q", x)
			}
		}
	}
	for _, p := range d.dirs {
		if node.kids[p.kid], err = r.sub(src, p, out, depth, true); err != nil {
			return err
		}
	}
	return nil
}

func (r *refresher) remove(dst int, name string) error {
	r.entries.Add(1)
	return r.whiteout(dst, name)
}

// known compares a directory that is in the index.
func (r *refresher) known(src *mdir, x differing, old *dirNode, up *spot, depth int, inline bool) (*dirNode, error) {
	at := &spot{up: up, name: x.name}
	sub, err := src.sub(x.found)
	if err != nil {
		if err := r.unopened(x, err); err != nil {
			return nil, err
		}
		how := x.ent.differs(x.old)
		x.ent.flags |= entDirty
		return r.shut(-1, x, old, at, how)
	}
	defer sub.close()
	fd := sub.levels[0].fd
	if err := unix.Fstat(fd, &x.st); err != nil {
		return nil, fault.Wrap(err, "read %q", x)
	}
	x.ent.set(&x.st)
	closed := r.closed(x, &x.st)
	how, err := r.dirDiffers(fd, x.found, x.ent, x.old, closed)
	if err != nil {
		return nil, err
	}
	if closed {
		return r.shut(fd, x, old, at, how)
	}
	deep := inline && depth >= viewHeld
	if deep {
		if err := src.park(sub); err != nil {
			return nil, err
		}
	}
	node, err := r.dir(sub, old, at, depth+1)
	if deep && err == nil {
		err = src.unpark(sub)
	}
	if err != nil {
		return nil, err
	}
	return node, r.finish(sub.levels[0].fd, x.found, at, how)
}

// rejoin copies unchanged names of files of which another name was copied, as when its directory was renamed: names
// in two layers would be two files.
func (r *refresher) rejoin(v *View) error {
	again := map[*spot]bool{}
	for _, n := range r.linked {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if r.links[n.key] == nil {
			continue
		}
		p := path.Join(n.at.path(), n.name)
		err := v.at(p, func(_ *mdir, f *found) error {
			dst, err := r.open(n.at)
			if err != nil {
				return err
			}
			defer unix.Close(dst)
			if err := r.file(pending{found: f, ent: n.ent}, dst); err != nil || n.ent.flags&entMissing == 0 {
				return err
			}
			return r.remove(dst, n.name)
		})
		if err != nil && !fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "copy %q", p)
		}
		for at := n.at; at != nil; at = at.up {
			again[at] = true
		}
	}
	for at := range again {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if err := v.at(at.path(), func(_ *mdir, f *found) error { return r.stamp(f, at) }); err != nil &&
			!fault.Is(err, fault.NotFound) {
			return fault.Wrap(err, "copy directory %q", at.path())
		}
	}
	return nil
}

// stamp copies the metadata of a directory to the new layer.
func (r *refresher) stamp(f *found, at *spot) error {
	var st unix.Stat_t
	a, err := f.dirAttrs(&st)
	if err != nil {
		return err
	}
	out, err := r.open(at)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	return r.dirMetaOf(&st, &a, out, false)
}

// shut returns the node of a directory whose content is not imported, and records the removal of its old content.
func (r *refresher) shut(fd int, x differing, old *dirNode, at *spot, how dirChange) (*dirNode, error) {
	node := &dirNode{}
	d := r.compare(nil, node, old, at)
	if err := r.write(x.m, &d, node, at, 0); err != nil {
		return nil, err
	}
	return node, r.finish(fd, x.found, at, how)
}

// dirChange is how a directory itself differs.
type dirChange int

const (
	dirSame dirChange = iota
	dirTime           // only in its time
	dirSelf           // in its mode, owner or attributes
)

// dirDiffers compares a directory's own state with the index, and completes its entry. The time of a closed directory
// does not count.
func (r *refresher) dirDiffers(fd int, f *found, e, old *ent, closed bool) (dirChange, error) {
	if old.same(&f.st) && old.flags&(entRacy|entDirty) == 0 {
		e.size = old.size
		return dirSame, nil
	}
	a, err := readAttrs(xattrSource{fd: fd}, true)
	if err != nil {
		return dirSame, fault.Wrap(err, "read %q", f)
	}
	e.size = a.sum()
	if closed {
		e.mtime = old.mtime
	}
	if old.flags&entDirty != 0 {
		return dirSelf, nil
	}
	return e.differs(old), nil
}

func (e *ent) differs(old *ent) dirChange {
	switch {
	case e.mode != old.mode || e.uid != old.uid || e.gid != old.gid || e.size != old.size:
		return dirSelf
	case e.mtime != old.mtime:
		return dirTime
	}
	return dirSame
}

// finish copies the metadata of a directory to the new layer, if the layer has the directory or must have it. fd is
// the original, -1 if it cannot be opened.
func (r *refresher) finish(fd int, f *found, at *spot, how dirChange) error {
	made := r.isMade(at)
	if how == dirSame && !made {
		return nil
	}
	if how == dirSelf || !made {
		r.entries.Add(1)
	}
	var a attrs
	if fd >= 0 {
		var err error
		if a, err = readAttrs(xattrSource{fd: fd}, true); err != nil {
			return fault.Wrap(err, "read %q", f)
		}
	}
	out, err := r.open(at)
	if err != nil {
		return fault.Wrap(err, "create directory %q", f)
	}
	defer unix.Close(out)
	return fault.Wrap(r.dirMetaOf(&f.st, &a, out, false), "copy directory %q", f)
}
