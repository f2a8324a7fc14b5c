package layer

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// Index is the state of the parts of a live root when they were last captured: enough of each entry to decide
// whether it changed since. It is immutable; Capture returns a new one that shares unchanged parts. The
// engine stores it beside the snapshot that it belongs to.
type Index struct {
	roots   []rootEnt
	origins []timeline.LayerID // ent.origin-1 -> the layer that holds a copy
}

// Entries returns the number of entries below the parts.
func (x *Index) Entries() int {
	n := 0
	for i := range x.roots {
		n += x.roots[i].node.count()
	}
	return n
}

// rootEnt is one part's root directory.
type rootEnt struct {
	path string
	self ent
	node *dirNode
}

// ent is the state of one entry at the last capture.
type ent struct {
	ino     uint64
	ctime   int64
	mtime   int64
	size    int64 // of a directory: digest of its attributes; of a device: its number
	mode    uint32
	uid     uint32
	gid     uint32
	nlink   uint32 // 0 for directories
	nameOff uint32
	kid     uint32 // of a directory: which of the node's kids
	origin  uint16
	nameLen uint8
	flags   uint8
}

const (
	entRacy    = 1 << iota // changed so shortly before the capture that its stat may not show the next change
	entOpaque              // a directory that hides lower layers
	entDirty               // of an import: a directory that could not be opened; look again whatever its stat
	entMissing             // of an import: exists, but could not be read; the layer does not have it
	entMapped              // may have been mapped shared and writable since the capture, so stat misses changes
)

// dirNode is a directory's entries in the order in which the kernel lists them. The order rarely changes, so a walk
// finds each entry without a search.
type dirNode struct {
	names []byte // of all entries, one after the other
	ents  []ent
	kids  []*dirNode
}

func (d *dirNode) name(e *ent) []byte {
	return d.names[e.nameOff : e.nameOff+uint32(e.nameLen)]
}

func (d *dirNode) count() int {
	if d == nil {
		return 0
	}
	n := len(d.ents)
	for _, k := range d.kids {
		n += k.count()
	}
	return n
}

func (e *ent) isDir() bool      { return e.mode&unix.S_IFMT == unix.S_IFDIR }
func (e *ent) isReg() bool      { return e.mode&unix.S_IFMT == unix.S_IFREG }
func (e *ent) isWhiteout() bool { return e.mode&unix.S_IFMT == unix.S_IFCHR && e.size == 0 }

// set copies the result of stat. The caller sets a directory's digest and all flags.
func (e *ent) set(st *unix.Stat_t) {
	e.ino, e.ctime, e.mtime = st.Ino, ctimeNs(st), mtimeNs(st)
	e.mode, e.uid, e.gid = st.Mode, st.Uid, st.Gid
	e.size, e.nlink = st.Size, uint32(st.Nlink)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		e.size, e.nlink = 0, 0
	case unix.S_IFCHR, unix.S_IFBLK:
		e.size = int64(st.Rdev)
	}
}

// same reports whether stat shows no change.
func (e *ent) same(st *unix.Stat_t) bool {
	if e.ino != st.Ino || e.mode != st.Mode || e.ctime != ctimeNs(st) || e.mtime != mtimeNs(st) ||
		e.uid != st.Uid || e.gid != st.Gid {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return true
	case unix.S_IFCHR, unix.S_IFBLK:
		return e.size == int64(st.Rdev) && e.nlink == uint32(st.Nlink)
	}
	return e.size == st.Size && e.nlink == uint32(st.Nlink)
}

// builder makes the new node of a directory, and reuses unchanged parts of the old one.
type builder struct {
	node *dirNode
}

func newBuilder(old *dirNode, upTo int) *builder {
	b := &builder{node: &dirNode{}}
	if old == nil {
		return b
	}
	b.node.names = old.names[:len(old.names):len(old.names)]
	b.node.ents = append(make([]ent, 0, len(old.ents)+8), old.ents[:upTo]...)
	b.node.kids = append(make([]*dirNode, 0, len(old.kids)+2), old.kids...)
	return b
}

// keep copies an entry of the old node.
func (b *builder) keep(e *ent) { b.node.ents = append(b.node.ents, *e) }

// put adds an entry whose name the old node may not have.
func (b *builder) put(name []byte, e ent) *ent {
	e.nameOff, e.nameLen = uint32(len(b.node.names)), uint8(len(name))
	b.node.names = append(b.node.names, name...)
	b.node.ents = append(b.node.ents, e)
	return &b.node.ents[len(b.node.ents)-1]
}

// finish returns the node, without names and kids that no entry refers to.
func (b *builder) finish() *dirNode {
	n := b.node
	used, kids := 0, 0
	for i := range n.ents {
		used += int(n.ents[i].nameLen)
		if n.ents[i].isDir() {
			kids++
		}
	}
	if used == len(n.names) && kids == len(n.kids) {
		return n
	}
	names := make([]byte, 0, used)
	var keep []*dirNode
	if kids > 0 {
		keep = make([]*dirNode, 0, kids)
	}
	for i := range n.ents {
		e := &n.ents[i]
		off := uint32(len(names))
		names = append(names, n.name(e)...)
		e.nameOff = off
		if e.isDir() {
			keep = append(keep, n.kids[e.kid])
			e.kid = uint32(len(keep) - 1)
		}
	}
	n.names, n.kids = names, keep
	return n
}

func (x *Index) racyFiles() bool {
	for i := range x.roots {
		if x.roots[i].node.racyFiles() {
			return true
		}
	}
	return false
}

func (d *dirNode) racyFiles() bool {
	for i := range d.ents {
		if e := &d.ents[i]; e.flags&entRacy != 0 && !e.isDir() {
			return true
		}
	}
	for _, k := range d.kids {
		if k.racyFiles() {
			return true
		}
	}
	return false
}

// forget drops all origins, when there are too many to number. A racy entry without an origin is compared with the
// head, or counts as changed.
func (x *Index) forget() {
	x.origins = nil
	for i := range x.roots {
		x.roots[i].node = x.roots[i].node.forget()
	}
}

func (d *dirNode) forget() *dirNode {
	n := &dirNode{names: d.names, ents: append([]ent(nil), d.ents...), kids: make([]*dirNode, len(d.kids))}
	for i := range n.ents {
		n.ents[i].origin = 0
	}
	for i, k := range d.kids {
		n.kids[i] = k.forget()
	}
	return n
}
