package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// racyWindow is how close to a capture a change may lie and yet share its
// timestamp with a later one: the kernel's clock for files ticks every 4 to 10 ms.
const racyWindow = 10e6

// walker compares live trees with an index. One walk is one capture.
type walker struct {
	ctx   context.Context
	plain bool
	// rootIsNews: a part's own directory counts as changed when it is not known.
	rootIsNews bool
	racyFrom   int64 // entries whose ctime is not older are racy
	suspects   map[devIno]struct{}
	same       func(part int, path []string, dir int, name string, e *ent) bool // compares with the copy in the origin
	cuts       map[string]*cut
	spare      atomic.Int32 // workers that may still be started
}

// worker is what one goroutine of a walk owns.
type worker struct {
	*walker
	part int
	r    dirReader
	subs []sub
	path []string
}

type sub struct {
	pos int   // in the new node's ents when building, else in the old one's
	old int32 // in the old node's ents, -1 for none
}

// result is what walking one directory found.
type result struct {
	fd    int
	node  *dirNode
	delta *delta
	err   error
}

// dir walks the open directory. It owns fd and gives it back, perhaps as another
// descriptor. old is what the index has, nil when everything is new. self is the
// directory's own entry.
func (w *worker) dir(fd, depth int, old *dirNode, d *delta, c *cut) (res result) {
	res.fd = fd
	if err := w.ctx.Err(); err != nil {
		res.err = err
		return res
	}
	base := len(w.subs)
	defer func() { w.subs = w.subs[:base] }()
	var b *builder
	if old == nil {
		b = newBuilder(nil, 0)
	}
	b, res.err = w.list(fd, old, b, d, c)
	if res.err != nil {
		return res
	}
	if len(w.subs) > base {
		b, res.err = w.descend(&res, depth, old, b, d, c, base)
		if res.err != nil {
			return res
		}
	}
	res.node = old
	if b != nil {
		// Items point into the node: it may not move any more.
		res.node = b.finish()
		res.node.point(d)
	}
	if d.leaf || d.isNew || len(d.items)+len(d.gone)+len(d.kids) > 0 {
		res.delta = d
	}
	return res
}

// point sets the entries that items refer to.
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
func (w *worker) list(fd int, old *dirNode, b *builder, d *delta, c *cut) (*builder, error) {
	var (
		st     unix.Stat_t
		pos    int            // next expected entry of old
		lookup map[string]int // set once the order differs
		seen   []bool
	)
	if err := w.r.start(fd); err != nil {
		return b, err
	}
	for {
		name, _, ok, err := w.r.next()
		if err != nil {
			return b, err
		}
		if !ok {
			break
		}
		if c != nil {
			if k := c.kids[string(name)]; k != nil && k.end {
				continue
			}
		}
		if err := w.r.stat(name, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return b, fault.Wrap(err, "stat %q", name)
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
				if b == nil {
					b = newBuilder(old, pos)
				}
			}
			if i, found := lookup[string(name)]; found {
				idx = i
				seen[i] = true
			}
		}
		if b, err = w.entry(fd, name, &st, old, idx, pos, b, d); err != nil {
			return b, err
		}
	}
	if old == nil {
		return b, nil
	}
	for i := pos; i < len(old.ents); i++ {
		if seen != nil && seen[i] {
			continue
		}
		if b == nil {
			b = newBuilder(old, pos)
		}
		if e := &old.ents[i]; !e.isWhiteout() || e.flags&entGhost != 0 {
			d.gone = append(d.gone, string(old.name(e)))
		}
	}
	return b, nil
}

// lookup maps the names from pos on.
func (n *dirNode) lookup(pos int) (map[string]int, []bool) {
	m := make(map[string]int, len(n.ents)-pos)
	for i := pos; i < len(n.ents); i++ {
		m[string(n.name(&n.ents[i]))] = i
	}
	return m, make([]bool, len(n.ents))
}

// entry decides about one entry.
func (w *worker) entry(fd int, name []byte, st *unix.Stat_t, old *dirNode, idx, pos int, b *builder, d *delta) (*builder, error) {
	if idx >= 0 {
		oe := &old.ents[idx]
		if oe.same(st) && oe.flags&(entGhost|entDirty) == 0 {
			if oe.isDir() {
				at := idx
				if b != nil {
					b.keep(oe)
					at = len(b.node.ents) - 1
				}
				w.subs = append(w.subs, sub{at, int32(idx)})
				return b, nil
			}
			changed, racy := w.doubt(fd, name, st, oe)
			if !changed {
				if !racy && oe.flags&entRacy != 0 {
					if b == nil {
						b = newBuilder(old, pos-1)
					}
					b.keep(oe)
					b.node.ents[len(b.node.ents)-1].flags &^= entRacy
					return b, nil
				}
				if b != nil {
					b.keep(oe)
				}
				return b, nil
			}
		}
	}
	if b == nil {
		b = newBuilder(old, pos-1)
	}
	var e ent
	e.set(st)
	if e.ctime >= w.racyFrom {
		e.flags |= entRacy
	}
	switch {
	case e.isDir():
		if idx >= 0 {
			e.kid = old.ents[idx].kid
		}
		b.put(name, e)
		w.subs = append(w.subs, sub{len(b.node.ents) - 1, int32(idx)})
		return b, nil
	case e.isWhiteout():
		if w.plain {
			return b, fault.New(fault.Unsupported, "%q is a character device 0:0, which stands for a deletion in a layer", name).
				WithHint("remove it inside the sandbox and try again")
		}
		b.put(name, e)
		if idx < 0 || !old.ents[idx].isWhiteout() || old.ents[idx].flags&(entGhost|entDirty) != 0 {
			d.gone = append(d.gone, string(name))
		}
		return b, nil
	}
	b.put(name, e)
	d.items = append(d.items, item{name: string(name)})
	return b, nil
}

// doubt looks closer at an entry that stat finds unchanged: changed says that it
// is not, racy that the next capture must look again.
func (w *worker) doubt(fd int, name []byte, st *unix.Stat_t, e *ent) (changed, racy bool) {
	suspect := false
	if len(w.suspects) > 0 && e.isReg() {
		_, suspect = w.suspects[devIno{st.Dev, st.Ino}]
	}
	if e.flags&entRacy == 0 && !suspect {
		return false, false
	}
	racy = e.ctime >= w.racyFrom
	if e.isWhiteout() {
		return false, racy
	}
	return !w.same(w.part, w.path, fd, string(name), e), racy
}

// descend walks the subdirectories that list pushed, on other goroutines too
// when some are idle.
func (w *worker) descend(res *result, depth int, old *dirNode, b *builder, d *delta, c *cut, base int) (*builder, error) {
	var st unix.Stat_t
	deep := depth >= maxHeld
	if deep {
		if err := unix.Fstat(res.fd, &st); err != nil {
			return b, err
		}
	}
	type job struct {
		sub sub
		res result
		d   *delta
		e   ent
	}
	var (
		wg   sync.WaitGroup
		jobs []*job
		err  error
	)
	defer wg.Wait()
	apply := func(s sub, e ent, kd *delta, r result) error {
		if r.err != nil {
			return r.err
		}
		var oe *ent
		var on *dirNode
		if s.old >= 0 {
			oe = &old.ents[s.old]
			if oe.isDir() {
				on = old.kids[oe.kid]
			}
		}
		if r.delta != nil {
			d.kids = append(d.kids, r.delta)
		}
		if oe != nil && r.node == on && e == *oe {
			return nil
		}
		if b == nil {
			b = newBuilder(old, len(old.ents))
		}
		pe := &b.node.ents[s.pos]
		off, l := pe.nameOff, pe.nameLen
		*pe = e
		pe.nameOff, pe.nameLen = off, l
		if on != nil {
			pe.kid = oe.kid
			b.node.kids[pe.kid] = r.node
		} else {
			pe.kid = uint32(len(b.node.kids))
			b.node.kids = append(b.node.kids, r.node)
		}
		return nil
	}
	for i := base; i < len(w.subs); i++ {
		s := w.subs[i]
		var oe *ent
		if s.old >= 0 {
			oe = &old.ents[s.old]
		}
		var name []byte
		if b != nil {
			name = b.node.name(&b.node.ents[s.pos])
		} else {
			name = old.name(oe)
		}
		nm := string(name)
		var ck *cut
		if c != nil {
			ck = c.kids[nm]
		}
		child, e2 := openDirAt(res.fd, nm)
		if e2 != nil {
			err = fault.Wrap(e2, "open directory %q", nm)
			break
		}
		kd := &delta{name: nm}
		e, on, e2 := w.enter(child, old, oe, kd)
		if e2 != nil {
			unix.Close(child)
			err = fault.Wrap(e2, "read directory %q", nm)
			break
		}
		if !deep && w.take() {
			j := &job{sub: s, d: kd, e: e}
			jobs = append(jobs, j)
			nw := &worker{walker: w.walker, part: w.part, path: append(append([]string{}, w.path...), nm)}
			wg.Go(func() {
				j.res = nw.dir(child, depth+1, on, j.d, ck)
				if j.res.fd >= 0 {
					unix.Close(j.res.fd)
				}
				nw.spare.Add(1)
			})
			continue
		}
		if deep {
			unix.Close(res.fd)
			res.fd = -1
		}
		w.path = append(w.path, nm)
		r := w.dir(child, depth+1, on, kd, ck)
		w.path = w.path[:len(w.path)-1]
		if deep && r.fd >= 0 {
			var e3 error
			if res.fd, e3 = comeBack(r.fd, st.Ino, st.Dev); e3 != nil && r.err == nil {
				r.err = e3
			}
		}
		if r.fd >= 0 {
			unix.Close(r.fd)
		}
		if err = apply(s, e, kd, r); err != nil {
			break
		}
	}
	wg.Wait()
	for _, j := range jobs {
		if e := apply(j.sub, j.e, j.d, j.res); e != nil && err == nil {
			err = e
		}
	}
	return b, err
}

// take claims an idle worker.
func (w *walker) take() bool {
	for n := w.spare.Load(); n > 0; n = w.spare.Load() {
		if w.spare.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// enter reads a subdirectory's own state and decides whether it is the one that
// the index knows. on is what its content is to be compared with; nil: all new.
func (w *worker) enter(fd int, old *dirNode, oe *ent, d *delta) (e ent, on *dirNode, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return e, nil, err
	}
	d.ino, d.dev = st.Ino, st.Dev
	if oe != nil && oe.isDir() && oe.same(&st) && oe.flags&(entRacy|entGhost|entDirty) == 0 {
		return *oe, old.kids[oe.kid], nil
	}
	e.set(&st)
	a, err := readAttrs(xattrSource{fd: fd}, w.plain)
	if err != nil {
		return e, nil, err
	}
	e.size = a.sum()
	if a.opaque {
		e.flags |= entOpaque
	}
	if e.ctime >= w.racyFrom {
		e.flags |= entRacy
	}
	known := oe != nil && oe.isDir()
	if known && oe.ino == e.ino && oe.flags&entGhost == 0 && (!a.opaque || oe.flags&entOpaque != 0) {
		d.leaf = oe.mtime != e.mtime
		d.self = oe.mode != e.mode || oe.uid != e.uid || oe.gid != e.gid || oe.size != e.size || oe.flags&entDirty != 0
		d.leaf = d.leaf || d.self
		return e, old.kids[oe.kid], nil
	}
	d.isNew = true
	d.opaque = a.opaque || known
	return e, nil, nil
}
