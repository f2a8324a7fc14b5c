package layer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// racyWindow is the time before a capture, in nanoseconds, in which a change may have the same timestamp as a later
// one: the kernel's clock for files ticks every 4 to 10 ms.
const racyWindow = 10e6

// walker compares live trees with an index. One walk is one capture.
type walker struct {
	crew
	ctx   context.Context
	plain bool
	most  int64        // maximum number of entries of the trees
	met   atomic.Int64 // number of entries counted so far
	// rootIsNews: a part's root directory counts as changed if the index does not have it.
	rootIsNews bool
	racyFrom   int64               // entries whose ctime is not older are racy
	named      []string            // paths of suspects
	suspects   map[uint64]struct{} // inodes
	since      int64               // files changed at or after it are suspects too; 0: none
	// suspectsKnown: suspects are all mapped files. Otherwise the index keeps its marks of mapped files.
	suspectsKnown bool
	same          func(part int, path []string, dir int, name string, e *ent) bool // compares with the copy in the origin
	cuts          map[string]*cut
	along         map[uint64]struct{} // inodes of this part of which all names are taken
	seen          *span               // times of the changes; nil: not recorded
}

// worker is the state of one goroutine of a walk.
type worker struct {
	*walker
	part int
	subs []sub    // still to be walked, of all directories on path
	path []string // names that lead to the current directory
}

// sub is a subdirectory that is still to be walked.
type sub struct {
	pos int   // in the new node's ents when building, else in the old one's
	old int32 // in the old node's ents, -1 for none
}

// place is a directory that is being walked.
type place struct {
	fd    int // -1 if it could not be reopened
	depth int
	old   *dirNode // node of the index; nil: everything is new
	b     *builder // of the new node; nil while that is equal to old
	delta *delta
	cut   *cut
}

// dir walks the directory p. It leaves p.fd open, perhaps as another descriptor. chosen is p.delta, or nil if a layer
// needs nothing of the directory.
func (w *worker) dir(p *place) (node *dirNode, chosen *delta, err error) {
	if err := w.ctx.Err(); err != nil {
		return nil, nil, err
	}
	base := len(w.subs)
	defer func() { w.subs = w.subs[:base] }()
	if p.old == nil {
		p.b = newBuilder(nil, 0)
	}
	if err := w.list(p); err != nil {
		return nil, nil, err
	}
	if subs := w.subs[base:]; len(subs) > 0 {
		if err := w.descend(p, subs); err != nil {
			return nil, nil, err
		}
	}
	d := p.delta
	node = p.old
	if p.b != nil {
		// Items point into the node, so its entries must not move any more.
		node = p.b.finish()
		node.point(d)
	}
	if d.leaf || d.isNew || len(d.items)+len(d.gone)+len(d.kids) > 0 {
		chosen = d
	}
	return node, chosen, nil
}

// point sets the entries of d's items.
func (n *dirNode) point(d *delta) {
	if len(d.items) == 0 {
		return
	}
	i := 0
	for j := range n.ents {
		if i == len(d.items) {
			return
		}
		if e := &n.ents[j]; !e.isDir() && string(n.name(e)) == d.items[i].name {
			d.items[i].ent = e
			i++
		}
	}
}

// list compares the entries of one directory, and pushes its subdirectories.
func (w *worker) list(p *place) error {
	var (
		st     unix.Stat_t
		old    = p.old
		pos    int            // next expected entry of old
		lookup map[string]int // set once the order differs
		seen   []bool
		met    int64 // entries that are not counted yet
	)
	r := dirfd.NewReader()
	defer r.Close()
	r.StartNew(p.fd)
	for {
		name, _, ok, err := r.Next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if met++; met == countEvery {
			if err := w.count(met); err != nil {
				return err
			}
			met = 0
		}
		if p.cut != nil {
			if k := p.cut.kids[string(name)]; k != nil && k.end {
				continue
			}
		}
		if err := r.Lstat(name, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return fault.Wrap(err, "stat %q", name)
		}
		idx := -1
		switch {
		case old == nil:
		case lookup == nil && pos < len(old.ents) && string(old.name(&old.ents[pos])) == string(name):
			idx = pos
			pos++
		default:
			if lookup == nil {
				lookup, seen = old.lookup(pos)
				p.differs(pos)
			}
			if i, found := lookup[string(name)]; found {
				idx = i
				seen[i] = true
			}
		}
		if err := w.entry(p, name, &st, idx, pos); err != nil {
			return err
		}
	}
	if err := w.count(met); err != nil {
		return err
	}
	if old == nil {
		return nil
	}
	for i := pos; i < len(old.ents); i++ {
		if seen != nil && seen[i] {
			continue
		}
		p.differs(pos)
		if e := &old.ents[i]; w.plain || !e.isWhiteout() {
			p.delta.gone = append(p.delta.gone, string(old.name(e)))
		}
	}
	return nil
}

// countEvery is the number of entries of a directory that are counted at once: all goroutines of a walk share the
// counter.
const countEvery = 1024

// count adds n entries to those that were met, and returns TooLarge beyond the limit. No quota of a sandbox limits
// its hard links well: one takes 16 bytes and no inode.
func (w *worker) count(n int64) error {
	if w.met.Add(n) <= w.most {
		return nil
	}
	return fault.New(fault.TooLarge,
		"the sandbox has more than %d files and directories outside its layers; the last counted are in %q",
		w.most, w.at()).
		WithHint("remove unneeded ones: coppice exec NAME -- rm -rf DIRECTORY; or give the daemon " +
			"more memory: coppice serve --memory SIZE")
}

// at returns the path of the worker for messages; of a deep directory, only the beginning.
func (w *worker) at() string { return "/" + strings.Join(w.path[:min(len(w.path), 8)], "/") }

// differs starts a new node with the first n entries of the old one, unless it was started before.
func (p *place) differs(n int) {
	if p.b == nil {
		p.b = newBuilder(p.old, n)
	}
}

// lookup returns the index of each name from pos on, and a slice to mark entries as seen.
func (n *dirNode) lookup(pos int) (map[string]int, []bool) {
	m := make(map[string]int, len(n.ents)-pos)
	for i := pos; i < len(n.ents); i++ {
		m[string(n.name(&n.ents[i]))] = i
	}
	return m, make([]bool, len(n.ents))
}

// entry decides about one entry. idx is its index in the old node, -1 if it is new. The entries of the old node
// before pos have been seen.
func (w *worker) entry(p *place, name []byte, st *unix.Stat_t, idx, pos int) error {
	if idx >= 0 {
		kept, err := w.keep(p, name, st, idx, pos)
		if kept || err != nil {
			return err
		}
	}
	p.differs(pos - 1)
	var e ent
	e.set(st)
	if e.ctime >= w.racyFrom {
		e.flags |= entRacy
	}
	e.flags |= w.mapped(st)
	switch {
	case e.isDir():
		if idx >= 0 {
			e.kid = p.old.ents[idx].kid
		}
		p.b.put(name, e)
		w.subs = append(w.subs, sub{len(p.b.node.ents) - 1, int32(idx)})
		return nil
	case e.isWhiteout() && !w.plain:
		p.b.put(name, e)
		if idx < 0 || !p.old.ents[idx].isWhiteout() {
			p.delta.gone = append(p.delta.gone, string(name))
			w.seen.add(e.ctime)
		}
		return nil
	}
	p.b.put(name, e)
	w.seen.add(e.ctime)
	p.delta.items = append(p.delta.items, item{name: string(name)})
	return nil
}

// keep copies entry idx of the old node if it has not changed, and reports whether it did.
func (w *worker) keep(p *place, name []byte, st *unix.Stat_t, idx, pos int) (bool, error) {
	oe := &p.old.ents[idx]
	if !oe.same(st) {
		return false, nil
	}
	if oe.isDir() {
		at := idx
		if p.b != nil {
			p.b.keep(oe)
			at = len(p.b.node.ents) - 1
		}
		w.subs = append(w.subs, sub{at, int32(idx)})
		return true, nil
	}
	changed, racy := w.doubt(p.fd, name, st, oe)
	if changed {
		return false, nil
	}
	flags := oe.flags
	if !racy {
		flags &^= entRacy
	}
	if w.suspectsKnown {
		flags = flags&^entMapped | w.mapped(st)
	}
	if flags != oe.flags {
		p.differs(pos - 1)
	}
	if p.b != nil {
		p.b.keep(oe)
		p.b.node.ents[len(p.b.node.ents)-1].flags = flags
	}
	return true, nil
}

// mapped returns entMapped for a suspect, and otherwise 0.
func (w *walker) mapped(st *unix.Stat_t) uint8 {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0
	}
	if w.since != 0 && ctimeNs(st) >= w.since {
		return entMapped
	}
	if len(w.suspects) > 0 {
		if _, ok := w.suspects[st.Ino]; ok {
			return entMapped
		}
	}
	return 0
}

// doubt checks an entry whose stat has not changed. changed reports that it must be taken, racy that the next capture
// must check it again.
func (w *worker) doubt(fd int, name []byte, st *unix.Stat_t, e *ent) (changed, racy bool) {
	if len(w.along) > 0 && e.nlink > 1 {
		if _, ok := w.along[e.ino]; ok {
			return true, false
		}
	}
	mapped := e.flags&entMapped | w.mapped(st)
	if w.seen != nil {
		mapped = 0 // a glance leaves mapped files to its caller, which knows how long ago the capture was
	}
	if e.flags&entRacy == 0 && mapped == 0 {
		return false, false
	}
	racy = e.ctime >= w.racyFrom
	if e.isWhiteout() && !w.plain {
		return false, racy
	}
	return !w.same(w.part, w.path, fd, string(name), e), racy
}

// kid is the result of walking a subdirectory.
type kid struct {
	ent   ent
	node  *dirNode
	delta *delta
}

// descend walks subdirectories of p, on other goroutines too when some are idle.
func (w *worker) descend(p *place, subs []sub) error {
	kids := make([]kid, len(subs))
	walk := func(w *worker) func(int) error {
		return func(i int) (err error) {
			kids[i], err = w.sub(p, subs[i])
			return err
		}
	}
	if p.depth < maxHeld {
		here := w.path
		err := w.each(len(subs), walk(w), func() func(int) error {
			return walk(&worker{walker: w.walker, part: w.part, path: slices.Clone(here)})
		})
		if err != nil {
			return err
		}
	} else {
		one := walk(w)
		for i := range subs {
			if err := one(i); err != nil {
				return err
			}
		}
	}
	for i := range subs {
		p.take(subs[i], &kids[i])
	}
	return nil
}

// sub walks one subdirectory of p. Deep in a tree p is closed meanwhile.
func (w *worker) sub(p *place, s sub) (k kid, err error) {
	name := p.name(s)
	q := &place{depth: p.depth + 1, delta: &delta{name: name}}
	if err := tooDeep(q.depth, w.at()); err != nil {
		return k, err
	}
	if p.cut != nil {
		q.cut = p.cut.kids[name]
	}
	if q.fd, err = dirfd.OpenDir(p.fd, name); err != nil {
		at := "/" + strings.Join(append(slices.Clone(w.path), name), "/")
		return k, hintReadable(fault.Wrap(err, "open directory %q", name), at)
	}
	defer func() { closeAll(q.fd) }()
	if k.ent, err = w.enter(p, s, q); err != nil {
		return k, fault.Wrap(err, "read directory %q", name)
	}
	var st unix.Stat_t
	deep := p.depth >= maxHeld
	if deep {
		if err := unix.Fstat(p.fd, &st); err != nil {
			return k, err
		}
		closeAll(p.fd)
		p.fd = -1
	}
	w.path = append(w.path, name)
	k.node, k.delta, err = w.dir(q)
	w.path = w.path[:len(w.path)-1]
	if deep && q.fd >= 0 {
		var back error
		p.fd, back = dirfd.OpenAbove(q.fd, st.Dev, st.Ino)
		err = errors.Join(err, back)
	}
	return k, err
}

// name returns the name of a subdirectory.
func (p *place) name(s sub) string {
	if p.b != nil {
		return string(p.b.node.name(&p.b.node.ents[s.pos]))
	}
	return string(p.old.name(&p.old.ents[s.old]))
}

// known returns the entry and the node of a subdirectory in the index; nil twice if the index has no directory with
// its name.
func (p *place) known(s sub) (*ent, *dirNode) {
	if s.old < 0 || !p.old.ents[s.old].isDir() {
		return nil, nil
	}
	e := &p.old.ents[s.old]
	return e, p.old.kids[e.kid]
}

// take adds the result of walking a subdirectory to p.
func (p *place) take(s sub, k *kid) {
	if k.delta != nil {
		p.delta.kids = append(p.delta.kids, k.delta)
	}
	oe, on := p.known(s)
	if oe != nil && k.node == on && k.ent == *oe {
		return
	}
	if p.b == nil {
		p.b = newBuilder(p.old, len(p.old.ents))
	}
	n := p.b.node
	e := &n.ents[s.pos]
	off, l := e.nameOff, e.nameLen
	*e = k.ent
	e.nameOff, e.nameLen = off, l
	if oe != nil {
		e.kid = oe.kid
		n.kids[e.kid] = k.node
	} else {
		e.kid = uint32(len(n.kids))
		n.kids = append(n.kids, k.node)
	}
}

// enter reads the state of q, a subdirectory of p, and decides whether it is the directory that the index has.
func (w *worker) enter(p *place, s sub, q *place) (e ent, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(q.fd, &st); err != nil {
		return e, err
	}
	oe, on := p.known(s)
	if oe != nil && oe.same(&st) && oe.flags&entRacy == 0 {
		q.old = on
		return *oe, nil
	}
	e.set(&st)
	a, err := readAttrs(xattrSource{fd: q.fd}, w.plain)
	if err != nil {
		return e, err
	}
	e.size = a.sum()
	if a.opaque {
		e.flags |= entOpaque
	}
	if e.ctime >= w.racyFrom {
		e.flags |= entRacy
	}
	d := q.delta
	if oe != nil && oe.ino == e.ino && (!a.opaque || oe.flags&entOpaque != 0) {
		d.self = oe.mode != e.mode || oe.uid != e.uid || oe.gid != e.gid || oe.size != e.size
		d.leaf = d.self || oe.mtime != e.mtime
		if d.leaf {
			w.seen.add(e.ctime)
		}
		q.old = on
		return e, nil
	}
	w.seen.add(e.ctime)
	d.isNew, d.ent = true, e
	d.opaque = a.opaque || oe != nil
	return e, nil
}
