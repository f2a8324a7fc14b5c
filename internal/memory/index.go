package memory

import (
	"crypto/sha256"
	"encoding/binary"
	"unsafe"

	"github.com/coppice-dev/coppice/internal/fault"
)

const indexMagic = "coppice-pages-01"

// indexHeader is the length of the part before the digests.
const indexHeader = len(indexMagic) + 16 + 8 + 8

// header is the beginning of a pack's index.
type header struct {
	nonce [16]byte // random, so that no two packs have the same id, and no pages are taken for another's
	made  int64    // nanoseconds since 1970; newer packs are searched first
	pages uint32
}

// encodeIndex returns the bytes of an index, and the pack's id. The digest of a page that the pack lacks is zero.
func encodeIndex(h header, digests []digest) ([]byte, digest) {
	b := make([]byte, 0, indexHeader+len(digests)*len(digest{}))
	b = append(append(b, indexMagic...), h.nonce[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.made))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(digests)))
	for i := range digests {
		b = append(b, digests[i][:]...)
	}
	return b, sha256.Sum256(b)
}

// decodeHeader reads the beginning of an index.
func decodeHeader(b []byte) (h header, err error) {
	r := reader{b: b}
	if err := r.magic(indexMagic); err != nil {
		return h, err
	}
	copy(h.nonce[:], r.take(len(h.nonce)))
	rest := r.take(16)
	if r.bad {
		return h, fault.New(fault.Corrupt, "truncated")
	}
	h.made = int64(binary.LittleEndian.Uint64(rest))
	pages := binary.LittleEndian.Uint64(rest[8:])
	if pages == 0 || pages > maxPages {
		return h, fault.New(fault.Corrupt, "it has %d pages", pages)
	}
	h.pages = uint32(pages)
	return h, nil
}

// decodeIndex reads an index that must have the given id. The digests alias b.
func decodeIndex(b []byte, id digest) ([]digest, error) {
	h, err := decodeHeader(b)
	switch {
	case err != nil:
		return nil, err
	case len(b) != indexHeader+int(h.pages)*len(digest{}):
		return nil, fault.New(fault.Corrupt, "it has %d bytes for %d pages", len(b), h.pages)
	case sha256.Sum256(b) != id:
		return nil, fault.New(fault.Corrupt, "its digest does not match its name")
	}
	return unsafe.Slice((*digest)(b[indexHeader:]), h.pages), nil
}
