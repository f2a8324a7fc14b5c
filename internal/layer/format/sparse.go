package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// SparseHash computes the Sum of a sparse file: the SHA-256 of each block of SparseBlock
// bytes that is not all zeros, in their order, each after its offset in 8 bytes
// (little-endian). The last block of a file may be shorter. So the sum says all of the
// content, together with the size, and does not depend on where a file system has holes.
type SparseHash struct{ h hash.Hash }

// NewSparseHash makes an empty one.
func NewSparseHash() *SparseHash { return &SparseHash{h: sha256.New()} }

var zeros [SparseBlock]byte

// Write adds the content at off, which is a multiple of SparseBlock. len(p) is one too,
// but at the end of the file. Offsets must grow; what lies between counts as zeros.
func (s *SparseHash) Write(p []byte, off int64) {
	for len(p) > 0 {
		block := p[:min(len(p), SparseBlock)]
		if !bytes.Equal(block, zeros[:len(block)]) {
			var at [8]byte
			binary.LittleEndian.PutUint64(at[:], uint64(off))
			s.h.Write(at[:])
			s.h.Write(block)
		}
		p, off = p[len(block):], off+int64(len(block))
	}
}

// Sum is that of what was written.
func (s *SparseHash) Sum() (sum [sha256.Size]byte) {
	s.h.Sum(sum[:0])
	return sum
}
