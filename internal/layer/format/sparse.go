package format

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// SparseHash computes the Sum of a sparse file: the SHA-256 of each block of SparseBlock
// bytes that is not all zeros, in their order, each after its offset in 8 bytes
// (little-endian). The last block of a file may be shorter. Together with the
// size, the sum covers all of the content, and does not depend on where a file system has
// holes.
type SparseHash struct{ h hash.Hash }

// NewSparseHash returns the hash of an empty file.
func NewSparseHash() *SparseHash { return &SparseHash{h: sha256.New()} }

var zeros [SparseBlock]byte

// Write adds the content at off. off must be a multiple of SparseBlock, and so must len(p), except at the end
// of the file. Offsets must increase; gaps count as zeros.
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

// Sum returns the sum of the written content.
func (s *SparseHash) Sum() (sum [sha256.Size]byte) {
	s.h.Sum(sum[:0])
	return sum
}
