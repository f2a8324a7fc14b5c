package layer

import (
	"cmp"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// delta is a directory that a layer must hold. A walk fills it in, and an emitter writes it.
type delta struct {
	name   string
	opaque bool // hides the content of older layers
	isNew  bool // did not exist before, or was another directory
	self   bool // its own metadata changed, beyond its time
	leaf   bool // its own metadata changed, its time included
	ent    ent  // state, if isNew
	copied bool // isNew only because overlayfs copied it up from a lower layer
	items  []item
	gone   []string // whiteouts
	kids   []*delta
}

// item is one entry, not a directory, that a layer must hold.
type item struct {
	name string
	ent  *ent // in the new index; its origin is set when it is written
}

func (d *delta) count(s *timeline.Stats) {
	if d == nil {
		return
	}
	if d.counts() {
		s.Paths++
	}
	s.Paths += len(d.items) + len(d.gone)
	for _, it := range d.items {
		if it.ent.isReg() {
			s.Bytes += it.ent.size
		}
	}
	for _, k := range d.kids {
		k.count(s)
	}
}

// counts reports whether the directory itself is a changed path, rather than only the parent of some: a
// changed time alone does not count, as in a diff.
func (d *delta) counts() bool { return d.isNew && !d.copied || d.self }

// namer collects the first changed paths.
type namer struct {
	most, left int // maximum number of paths, and bytes of paths that are still allowed
	full       bool
	out, gone  []string
}

// add names the changed paths of the directory d, whose path is at.
func (l *namer) add(d *delta, at *trail) {
	if d.counts() {
		l.name(at)
	}
	for i := 0; i < len(d.items) && !l.full; i++ {
		l.name(at.down(d.items[i].name))
	}
	for i := 0; i < len(d.gone) && !l.full; i++ {
		if l.name(at.down(d.gone[i])) {
			l.gone = append(l.gone, l.out[len(l.out)-1])
		}
	}
	for i := 0; i < len(d.kids) && !l.full; i++ {
		l.add(d.kids[i], at.down(d.kids[i].name))
	}
}

// name adds one path, unless the list is full or the path too long.
func (l *namer) name(at *trail) bool {
	p, whole := at.tail(limit.NamedPath)
	if len(l.out) == l.most || !whole || len(p) > min(limit.NamedPath, l.left) {
		l.full = true
		return false
	}
	l.left -= len(p)
	l.out = append(l.out, cmp.Or(p, "/"))
	return true
}
