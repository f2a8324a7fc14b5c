package repo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// The index has git's own format, version 2, in big-endian numbers (gitformat-index(5)):
//
//	"DIRC", 2, number of entries
//	of each: ctime, ctime ns, mtime, mtime ns, dev, ino, mode, uid, gid, size (4 bytes each),
//	  object name, 2 bytes of flags (the length of the path, at most 0xfff), path, 1 to 8 NULs
//	  that make it a multiple of 8
//	"TREE", length, and the names of the trees that the entries make
//	a hash of all that
//
// Other flags of git are never set, and there is no other extension.

// indexEntry is one path of an index.
type indexEntry struct {
	path     string
	mode     Mode
	id       OID
	stat     stat
	uid, gid uint32
}

// stat is the file system's data about a file. git never takes a file with the zero value for unchanged, since no
// file has a time of 0 here.
type stat struct {
	mtime     uint32 // seconds
	ctime     uint32 // seconds
	ctimeNsec uint32
	ino       uint32 // the low 32 bits
	size      int64
}

// index is the content of an index.
type index struct {
	entries []indexEntry   // sorted by path
	trees   map[string]OID // by path; "" is the top
}

const (
	indexMagic   = "DIRC"
	indexVersion = 2
	statSize     = 40
	maxNameFlag  = 0xfff
)

// sum returns the hash function of the object IDs.
func (f Format) sum() hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// encode returns the bytes of an index.
func (x *index) encode(ctx context.Context, f Format) ([]byte, error) {
	n := 0
	for i := range x.entries {
		n += statSize + f.digits()/2 + 2 + len(x.entries[i].path) + 8
	}
	out := make([]byte, 0, n+64*len(x.trees)+64)
	out = append(out, indexMagic...)
	out = binary.BigEndian.AppendUint32(out, indexVersion)
	out = binary.BigEndian.AppendUint32(out, uint32(len(x.entries)))
	for i := range x.entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var err error
		if out, err = x.entries[i].append(out); err != nil {
			return nil, err
		}
	}
	tree, err := x.appendTrees(ctx, nil)
	if err != nil {
		return nil, err
	}
	out = append(out, "TREE"...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(tree)))
	out = append(out, tree...)
	sum := f.sum()
	sum.Write(out)
	return sum.Sum(out), nil
}

func (e *indexEntry) append(out []byte) ([]byte, error) {
	begin := len(out)
	for _, n := range []uint32{e.stat.ctime, e.stat.ctimeNsec, e.stat.mtime, 0, 0, e.stat.ino, uint32(e.mode), e.uid,
		e.gid, sizeOf(e.stat.size)} {
		out = binary.BigEndian.AppendUint32(out, n)
	}
	out, err := hex.AppendDecode(out, []byte(e.id))
	if err != nil {
		return nil, err
	}
	out = binary.BigEndian.AppendUint16(out, uint16(min(len(e.path), maxNameFlag)))
	out = append(out, e.path...)
	return append(out, make([]byte, 8-(len(out)-begin)%8)...), nil
}

// sizeOf returns a size as git stores it: its low 32 bits, but not 0 unless the file is empty.
func sizeOf(n int64) uint32 {
	if low := uint32(n); low != 0 || n == 0 {
		return low
	}
	return 1 << 31
}

// appendTrees appends the IDs of the trees, parents first. A directory whose tree is unknown has the count -1, and
// git computes it.
func (x *index) appendTrees(ctx context.Context, out []byte) ([]byte, error) {
	known := x.whole()
	var add func(path, name string, entries []indexEntry) error
	add = func(path, name string, entries []indexEntry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		kids := split(path, entries)
		n, id := len(entries), known[path]
		if id == "" {
			n = -1
		}
		out = append(out, name+"\x00"+strconv.Itoa(n)+" "+strconv.Itoa(len(kids))+"\n"...)
		var err error
		if out, err = hex.AppendDecode(out, []byte(id)); err != nil {
			return err
		}
		for _, k := range kids {
			if err := add(k.path, k.name, k.entries); err != nil {
				return err
			}
		}
		return nil
	}
	return out, add("", "", x.entries)
}

// whole returns the known trees, without those that contain an empty subtree: an index has no entry for one, and
// git reads but never writes them.
func (x *index) whole() map[string]OID {
	has := dirSet{}
	for i := range x.entries {
		has.above(x.entries[i].path)
	}
	known := x.trees
	for t := range x.trees {
		if t == "" || has[t] {
			continue
		}
		if len(known) == len(x.trees) {
			known = map[string]OID{}
			for p, id := range x.trees {
				known[p] = id
			}
		}
		odd := dirSet{}
		odd.add(t)
		for p := range odd {
			delete(known, p)
		}
		delete(known, "")
	}
	return known
}

// kid is a subdirectory with its entries.
type kid struct {
	path, name string
	entries    []indexEntry
}

// split returns the direct subdirectories, in the order in which git stores them: shorter names first.
func split(path string, entries []indexEntry) []kid {
	var kids []kid
	if path != "" {
		path += "/"
	}
	for i := 0; i < len(entries); {
		name, _, deeper := strings.Cut(entries[i].path[len(path):], "/")
		if !deeper {
			i++
			continue
		}
		dir := path + name
		n := 1
		for i+n < len(entries) && strings.HasPrefix(entries[i+n].path, dir+"/") {
			n++
		}
		kids = append(kids, kid{dir, name, entries[i : i+n]})
		i += n
	}
	slices.SortFunc(kids, func(a, b kid) int { return cmp.Or(len(a.name)-len(b.name), strings.Compare(a.name, b.name)) })
	return kids
}

// errIndex is the error for an index that encode did not write.
var errIndex = fault.New(fault.Invalid, "invalid previous index: not written by Coppice, or damaged")

// parseIndex parses the output of encode, and nothing else.
func parseIndex(ctx context.Context, f Format, in []byte) (*index, error) {
	sum := f.sum()
	if len(in) < 12+sum.Size() || string(in[:4]) != indexMagic || binary.BigEndian.Uint32(in[4:]) != indexVersion {
		return nil, errIndex
	}
	body, want := in[:len(in)-sum.Size()], in[len(in)-sum.Size():]
	sum.Write(body)
	if !bytes.Equal(sum.Sum(nil), want) {
		return nil, errIndex
	}
	n := int(binary.BigEndian.Uint32(in[8:]))
	if n > len(body)/(statSize+f.digits()/2+2) {
		return nil, errIndex
	}
	x := &index{entries: make([]indexEntry, n), trees: map[string]OID{}}
	body = body[12:]
	for i := range x.entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var ok bool
		if body, ok = x.entries[i].parse(f, body); !ok || i > 0 && x.entries[i-1].path >= x.entries[i].path {
			return nil, errIndex
		}
	}
	if len(body) < 8 || string(body[:4]) != "TREE" || int64(binary.BigEndian.Uint32(body[4:])) != int64(len(body)-8) {
		return nil, errIndex
	}
	if rest, ok := x.parseTrees(f, "", body[8:]); !ok || len(rest) > 0 {
		return nil, errIndex
	}
	return x, nil
}

func (e *indexEntry) parse(f Format, in []byte) (rest []byte, ok bool) {
	name := statSize + f.digits()/2 + 2
	if len(in) < name {
		return nil, false
	}
	at := func(i int) uint32 { return binary.BigEndian.Uint32(in[4*i:]) }
	e.stat = stat{ctime: at(0), ctimeNsec: at(1), mtime: at(2), ino: at(5), size: int64(at(9))}
	e.mode, e.uid, e.gid = Mode(at(6)), at(7), at(8)
	e.id = OID(hex.EncodeToString(in[statSize : name-2]))
	flags := int(binary.BigEndian.Uint16(in[name-2:]))
	path, _, found := bytes.Cut(in[name:], []byte{0})
	all := name + len(path)
	all += 8 - all%8
	if !found || flags != min(len(path), maxNameFlag) || len(path) == 0 || all > len(in) {
		return nil, false
	}
	e.path = string(path)
	return in[all:], true
}

func (x *index) parseTrees(f Format, path string, in []byte) (rest []byte, ok bool) {
	name, in, ok1 := bytes.Cut(in, []byte{0})
	count, in, ok2 := bytes.Cut(in, []byte{' '})
	subs, in, ok3 := bytes.Cut(in, []byte{'\n'})
	n, err1 := strconv.Atoi(string(count))
	kids, err2 := strconv.Atoi(string(subs))
	if !ok1 || !ok2 || !ok3 || err1 != nil || err2 != nil || strings.Count(path, "/") > limit.TreePath/2 {
		return nil, false
	}
	switch {
	case path != "" && len(name) > 0:
		path += "/" + string(name)
	case len(name) > 0:
		path = string(name)
	}
	if n >= 0 {
		if len(in) < f.digits()/2 {
			return nil, false
		}
		x.trees[path] = OID(hex.EncodeToString(in[:f.digits()/2]))
		in = in[f.digits()/2:]
	}
	for range kids {
		if in, ok = x.parseTrees(f, path, in); !ok {
			return nil, false
		}
	}
	return in, true
}

// apply returns the index of the tree that results from the changes. Changed files have the stat of what was written,
// or none. It fails if the changes do not start from this index's tree. Changes are in git's order, top is the
// resulting tree.
func (x *index) apply(ctx context.Context, changes []treeChange, top OID, uid, gid uint32) (*index, error) {
	out := &index{trees: map[string]OID{"": top}}
	for p, id := range x.trees {
		if p != "" {
			out.trees[p] = id
		}
	}
	var files []*treeChange
	for i := range changes {
		c := &changes[i]
		if c.mode == ModeTree {
			out.trees[c.path] = c.id
		} else if c.old == ModeTree {
			delete(out.trees, c.path)
		}
		if c.mode != ModeTree && c.old != ModeTree {
			files = append(files, c)
		}
	}
	slices.SortFunc(files, func(a, b *treeChange) int { return strings.Compare(a.path, b.path) })
	out.entries = make([]indexEntry, 0, len(x.entries)+len(files))
	old := x.entries
	for _, c := range files {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		i, found := slices.BinarySearchFunc(old, c.path,
			func(e indexEntry, p string) int { return strings.Compare(e.path, p) })
		out.entries, old = append(out.entries, old[:i]...), old[i:]
		if found != (c.old != 0) || found && (old[0].id != c.oldID || old[0].mode != c.old) {
			return nil, fault.New(fault.Invalid, "the previous index is for another tree: %q", clip(c.path))
		}
		if found {
			old = old[1:]
		}
		if c.mode != 0 {
			out.entries = append(out.entries, entryOf(c, uid, gid))
		}
	}
	out.entries = append(out.entries, old...)
	return out, nil
}

// entryOf returns the entry of a file; without a stat if the file was not written.
func entryOf(c *treeChange, uid, gid uint32) indexEntry {
	e := indexEntry{path: c.path, mode: c.mode, id: c.id, stat: c.stat}
	if c.stat != (stat{}) {
		e.uid, e.gid = uid, gid
	}
	return e
}
