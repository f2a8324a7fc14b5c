package layer

import (
	"cmp"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// delta is one directory that a layer must hold: the decision that walking makes
// and that emitting carries out.
type delta struct {
	name   string
	opaque bool // hides what older layers have
	isNew  bool // was not there, or was another directory
	self   bool // changed itself, beyond its time
	leaf   bool // changed itself in whatever way
	ent    ent  // its state, when it is new
	copied bool // it is new where overlayfs writes, as a copy of what was below
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

// counts says whether the directory itself is a changed path, rather than the
// place of some: its time alone is none, as in a diff.
func (d *delta) counts() bool { return d.isNew && !d.copied || d.self }

// first adds changed paths to out, up to n in all. path is the directory's own.
func (d *delta) first(out, gone []string, path string, n int) (all, removed []string) {
	add := func(p string) {
		if len(out) < n {
			out = append(out, p)
		}
	}
	if d.counts() {
		add(cmp.Or(path, "/"))
	}
	for i := 0; i < len(d.items) && len(out) < n; i++ {
		add(path + "/" + d.items[i].name)
	}
	for i := 0; i < len(d.gone) && len(out) < n; i++ {
		add(path + "/" + d.gone[i])
		gone = append(gone, path+"/"+d.gone[i])
	}
	for i := 0; i < len(d.kids) && len(out) < n; i++ {
		out, gone = d.kids[i].first(out, gone, path+"/"+d.kids[i].name, n)
	}
	return out, gone
}
