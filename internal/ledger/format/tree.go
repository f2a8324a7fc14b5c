package format

import (
	"crypto/sha256"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Tree is the right edge of a Merkle tree by RFC 6962, which suffices to append to it. The zero Tree is empty.
type Tree struct {
	size int64
	edge []Hash // roots of the perfect subtrees, largest first
}

// NewTree returns a tree of size leaves; edge holds the stored hashes at EdgeIndexes.
func NewTree(size int64, edge []Hash) Tree { return Tree{size, slices.Clone(edge)} }

// EdgeIndexes returns the indexes of the edge of a tree among its stored hashes, which are in the order of
// tlog.StoredHashIndex.
func EdgeIndexes(size int64) (at []int64) {
	for level, lo := 62, int64(0); level >= 0; level-- {
		if size&(1<<level) != 0 {
			at = append(at, tlog.StoredHashIndex(level, lo>>level))
			lo += 1 << level
		}
	}
	return at
}

// Size returns the number of leaves.
func (t *Tree) Size() int64 { return t.size }

// Clone returns an independent copy.
func (t *Tree) Clone() Tree { return NewTree(t.size, t.edge) }

// Add appends a leaf, and returns the hashes to store for it.
func (t *Tree) Add(leaf Hash) (stored []Hash) {
	stored = []Hash{leaf}
	for n := t.size; n&1 == 1; n >>= 1 {
		last := len(t.edge) - 1
		leaf = node(t.edge[last], leaf)
		t.edge = t.edge[:last]
		stored = append(stored, leaf)
	}
	t.edge = append(t.edge, leaf)
	t.size++
	return stored
}

// Root returns the hash of the whole tree.
func (t *Tree) Root() Hash {
	if t.size == 0 {
		return sha256.Sum256(nil)
	}
	h := t.edge[len(t.edge)-1]
	for i := len(t.edge) - 2; i >= 0; i-- {
		h = node(t.edge[i], h)
	}
	return h
}

func node(l, r Hash) Hash { return Hash(tlog.NodeHash(tlog.Hash(l), tlog.Hash(r))) }

// Cover returns the indexes, among the stored hashes of a tree, of the hashes that a proof of some of its leaves
// needs: those of the largest perfect subtrees without any of these leaves, from left to right. The leaves must be in
// ascending order and below size.
func Cover(size int64, leaves []int64) (at []int64) {
	var walk func(lo, hi int64)
	walk = func(lo, hi int64) {
		mine := len(leaves) > 0 && leaves[0] < hi
		switch n := hi - lo; {
		case !mine && n&(n-1) == 0:
			level := bits.TrailingZeros64(uint64(n))
			at = append(at, tlog.StoredHashIndex(level, lo>>level))
		case n == 1:
			leaves = leaves[1:]
		default:
			mid := lo + split(n)
			walk(lo, mid)
			walk(mid, hi)
		}
	}
	if size > 0 {
		walk(0, size)
	}
	return at
}

// split returns the size of the left subtree of n leaves: the largest power of two below n.
func split(n int64) int64 { return 1 << (bits.Len64(uint64(n-1)) - 1) }

// Leaf is one leaf of a tree.
type Leaf struct {
	At   int64 // its index, from 0
	Hash Hash
}

// CoverRoot returns the root of a tree of size leaves, computed from some of its leaves and the hashes of Cover for
// the rest. leaf is called for the leaves in ascending order and returns nil after the last one; hash is called from
// left to right, with the index among the stored hashes. The caller checks that no hashes are left over.
func CoverRoot(size int64, leaf func() (*Leaf, error), hash func(at int64) (Hash, error)) (Hash, error) {
	if size == 0 {
		return sha256.Sum256(nil), nil
	}
	next, err := leaf()
	if err != nil {
		return Hash{}, err
	}
	var walk func(lo, hi int64) (Hash, error)
	walk = func(lo, hi int64) (Hash, error) {
		mine := next != nil && next.At < hi
		switch n := hi - lo; {
		case !mine && n&(n-1) == 0:
			level := bits.TrailingZeros64(uint64(n))
			return hash(tlog.StoredHashIndex(level, lo>>level))
		case n == 1:
			h := next.Hash
			next, err = leaf()
			return h, err
		default:
			mid := lo + split(n)
			l, err := walk(lo, mid)
			if err != nil {
				return Hash{}, err
			}
			r, err := walk(mid, hi)
			return node(l, r), err
		}
	}
	root, err := walk(0, size)
	if err == nil && next != nil {
		err = fault.New(fault.Corrupt, "leaf %d is outside a tree of size %d", next.At, size)
	}
	return root, err
}
