//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
)

// model is the expected tree after a number of steps: a pure function of the seeds and of the number of steps with
// each.
type model struct {
	paths []string // sorted, without the root
	nodes map[string]*inode
	made  int    // number of inodes created
	last  string // the path that was written last
	can   powers
}

// powers is what steps may use with a driver.
type powers struct {
	// Change files with several hard links. overlayfs splits such a file if it is in a lower layer.
	hard  bool
	attrs bool // extended attributes
}

type inode struct {
	id    int
	kind  byte // 'd', 'f', 'l', 'p'
	mode  uint32
	data  []byte // content of a file, or target of a link
	attrs map[string]string
	mtime int64 // seconds; 0 if not known
	names int
}

// step is a change by one system call.
type step struct {
	op       string
	path, to string
	off      int64
	data     []byte
	mode     uint32
	key      string
	node     *inode // the inode of path before the step
}

const (
	mostPaths = 400
	mostData  = 8 << 20
	hole      = 1 << 20
)

func newModel(can powers) *model { return &model{nodes: map[string]*inode{}, can: can} }

// moods are lists of operations to choose from. A writer uses each for a while.
var moods = []string{
	"create create mkdir append append write map truncate punch rename replace remove chmod attr noattr link symlink " +
		"fifo touch",
	"create append create append create append",           // many small files
	"write big big append truncate map punch",             // few big files
	"mkdir deeper deeper deeper create append rename",     // deep directories
	"remove remove remove rename replace link create",     // removal
	"write map append map chmod attr noattr touch write",  // repeated changes of the same files
	"create append link link rename replace remove write", // names
}

// next returns step i of a seed, which is possible in m.
func (m *model) next(seed uint64, i int) step {
	rnd := rand.New(rand.NewPCG(seed, uint64(i)))
	mood := strings.Fields(moods[rand.New(rand.NewPCG(seed, 1<<63|uint64(i/80))).IntN(len(moods))])
	size := 0
	for _, n := range m.nodes {
		size += len(n.data)
	}
	for range 20 {
		op := mood[rnd.IntN(len(mood))]
		if len(m.paths) > mostPaths || size > mostData {
			op = "remove"
		}
		if s, ok := m.try(op, rnd); ok {
			return s
		}
	}
	s, ok := m.try("create", rnd)
	for !ok {
		s, ok = m.try("create", rnd)
	}
	return s
}

// try returns a step for an operation, if the tree has what rnd chooses for it.
func (m *model) try(op string, rnd *rand.Rand) (s step, ok bool) {
	s.op = op
	switch op {
	case "create", "mkdir", "deeper", "symlink", "fifo":
		s.path = path.Join(m.dir(rnd, op == "deeper"), name(rnd))
		if op == "symlink" {
			s.data = []byte(fmt.Sprintf("../%s/%d", name(rnd), rnd.IntN(100)))
		}
		if op == "deeper" {
			s.op = "mkdir"
		}
		return s, m.nodes[s.path] == nil && len(s.path) < 600
	case "append", "write", "big", "map", "truncate", "punch":
		if s.path, ok = m.file(rnd); !ok {
			return s, false
		}
		return m.content(s, rnd)
	}
	if len(m.paths) == 0 {
		return s, false
	}
	s.path = m.paths[rnd.IntN(len(m.paths))]
	s.node = m.nodes[s.path]
	n := s.node
	switch op {
	case "remove":
		for n.kind == 'd' { // the first leaf below it
			i, _ := slices.BinarySearch(m.paths, s.path)
			if i+1 >= len(m.paths) || !strings.HasPrefix(m.paths[i+1], s.path+"/") {
				break
			}
			s.path = m.paths[i+1]
			n = m.nodes[s.path]
		}
		s.node = n
		return s, true
	case "rename":
		s.to = path.Join(m.dir(rnd, false), name(rnd))
		return s, m.nodes[s.to] == nil && !strings.HasPrefix(s.to+"/", s.path+"/")
	case "replace":
		s.to = m.paths[rnd.IntN(len(m.paths))]
		o := m.nodes[s.to]
		s.op = "rename"
		return s, o != n && (o.kind == 'd') == (n.kind == 'd') && !m.full(s.to) &&
			!strings.HasPrefix(s.to+"/", s.path+"/") && !strings.HasPrefix(s.path+"/", s.to+"/")
	case "link":
		s.to = path.Join(m.dir(rnd, false), name(rnd))
		return s, n.kind == 'f' && m.nodes[s.to] == nil && n.names < 5
	case "chmod":
		s.mode = []uint32{0, 0o400, 0o600, 0o644, 0o755, 0o111}[rnd.IntN(6)]
		if n.kind == 'd' {
			s.mode = []uint32{0o700, 0o755, 0o1777}[rnd.IntN(3)]
		}
		return s, n.kind != 'l' && m.free(n)
	case "attr":
		s.key, s.data = "user.k"+name(rnd), filling(rnd, 1+rnd.IntN(200))
		return s, m.can.attrs && (n.kind == 'f' || n.kind == 'd') && m.free(n)
	case "noattr":
		for _, s.key = range slices.Sorted(maps.Keys(n.attrs)) {
			break
		}
		return s, s.key != "" && m.free(n)
	case "touch":
		s.off = 1e9 + rnd.Int64N(1e8)
		return s, n.kind == 'f' && m.free(n)
	}
	return s, false
}

// content returns a step that changes the content of a file.
func (m *model) content(s step, rnd *rand.Rand) (step, bool) {
	s.node = m.nodes[s.path]
	size := len(s.node.data)
	switch s.op {
	case "append":
		s.off, s.data = int64(size), filling(rnd, 1+rnd.IntN(5000))
	case "write":
		s.off, s.data = rnd.Int64N(int64(size)+100), filling(rnd, 1+rnd.IntN(5000))
	case "big":
		s.op = "write"
		s.off, s.data = rnd.Int64N(hole), filling(rnd, 1<<16+rnd.IntN(1<<18))
	case "map", "punch":
		if size == 0 {
			return s, false
		}
		s.off = rnd.Int64N(int64(size))
		s.data = filling(rnd, min(1+rnd.IntN(3000), size-int(s.off)))
		if s.op == "punch" {
			clear(s.data)
		}
	case "truncate":
		s.off = rnd.Int64N([]int64{1, int64(size) + 1, hole}[rnd.IntN(3)])
	}
	return s, true
}

// free reports whether steps may change an inode.
func (m *model) free(n *inode) bool { return m.can.hard || n.names == 1 }

// full reports whether a directory has entries.
func (m *model) full(p string) bool {
	i, _ := slices.BinarySearch(m.paths, p+"/")
	return i < len(m.paths) && strings.HasPrefix(m.paths[i], p+"/")
}

// file chooses a file that may be written, often the last one.
func (m *model) file(rnd *rand.Rand) (string, bool) {
	if n := m.nodes[m.last]; n != nil && n.kind == 'f' && m.free(n) && rnd.IntN(3) == 0 {
		return m.last, true
	}
	for range 10 {
		if len(m.paths) == 0 {
			break
		}
		p := m.paths[rnd.IntN(len(m.paths))]
		if n := m.nodes[p]; n.kind == 'f' && m.free(n) {
			return p, true
		}
	}
	return "", false
}

// dir chooses a directory; with deep, one of the deepest.
func (m *model) dir(rnd *rand.Rand, deep bool) string {
	if deep {
		best := ""
		for _, p := range m.paths {
			if m.nodes[p].kind == 'd' && strings.Count(p, "/") >= strings.Count(best, "/") {
				best = p
			}
		}
		return best
	}
	for range 10 {
		if len(m.paths) == 0 {
			break
		}
		if p := m.paths[rnd.IntN(len(m.paths))]; m.nodes[p].kind == 'd' {
			return p
		}
	}
	return ""
}

// name returns one of few names, so that names are reused.
func name(rnd *rand.Rand) string {
	return []string{"a", "b", "c", "dir", "file", "..x", "\xff", "ü"}[rnd.IntN(8)] + fmt.Sprint(rnd.IntN(12))
}

func filling(rnd *rand.Rand, n int) []byte {
	var block [61]byte
	for i := range block {
		block[i] = byte(rnd.Uint32())
	}
	b := bytes.Repeat(block[:], n/len(block)+1)[:n]
	b[0] = byte(n)
	return b
}

// apply applies a step to the model.
func (m *model) apply(s step) {
	n := m.nodes[s.path]
	switch s.op {
	case "create":
		m.add(s.path, &inode{kind: 'f', mode: 0o644})
		m.last = s.path
	case "mkdir":
		m.add(s.path, &inode{kind: 'd', mode: 0o755})
	case "symlink":
		m.add(s.path, &inode{kind: 'l', data: s.data})
	case "fifo":
		m.add(s.path, &inode{kind: 'p', mode: 0o600})
	case "append", "write", "map", "punch":
		n.data, n.mtime, m.last = written(n.data, s, len(s.data)), 0, s.path
	case "truncate":
		n.data, n.mtime = sized(n.data, int(s.off)), 0
	case "remove":
		m.drop(s.path)
	case "rename":
		m.rename(s.path, s.to)
	case "link":
		m.set(s.to, n)
	case "chmod":
		n.mode = s.mode
	case "attr":
		if n.attrs == nil {
			n.attrs = map[string]string{}
		}
		n.attrs[s.key] = string(s.data)
	case "noattr":
		delete(n.attrs, s.key)
	case "touch":
		n.mtime = s.off
	}
}

// written returns the content of a file after k bytes of a step were written.
func written(data []byte, s step, k int) []byte {
	if k > 0 {
		data = sized(data, max(len(data), int(s.off)+k))
		copy(data[s.off:], s.data[:k])
	}
	return data
}

// sized truncates data, or extends it with zeros.
func sized(data []byte, size int) []byte {
	if size <= len(data) {
		return data[:size:size]
	}
	return append(data, make([]byte, size-len(data))...)
}

func (m *model) add(p string, n *inode) {
	m.made++
	n.id = m.made
	m.set(p, n)
}

func (m *model) set(p string, n *inode) {
	i, there := slices.BinarySearch(m.paths, p)
	if !there {
		m.paths = slices.Insert(m.paths, i, p)
	}
	m.nodes[p] = n
	n.names++
}

func (m *model) drop(p string) {
	i, _ := slices.BinarySearch(m.paths, p)
	m.paths = slices.Delete(m.paths, i, i+1)
	m.nodes[p].names--
	delete(m.nodes, p)
}

func (m *model) rename(from, to string) {
	if m.nodes[to] != nil {
		m.drop(to)
	}
	for _, p := range slices.Clone(m.paths) {
		if p == from || strings.HasPrefix(p, from+"/") {
			n := m.nodes[p]
			m.drop(p)
			m.set(to+p[len(from):], n)
		}
	}
}
