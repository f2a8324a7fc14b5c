package memory

import (
	"encoding/hex"
	"encoding/json"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
)

// The files of an image, as gVisor names them.
const (
	kernelName = "checkpoint.img"
	metaName   = "pages_meta.img"
	pagesName  = "pages.img"
)

// smallNames are the files of an image that are stored as one piece.
var smallNames = [2]string{kernelName, metaName}

const (
	pageSize  = 4096
	maxPages  = 1 << 24   // 64 GiB of memory in one image
	maxSmall  = 256 << 20 // bytes of a small file, which is read into memory
	maxFacts  = 64 << 10  // bytes of facts as JSON
	maxStored = 128 << 20 // bytes of a manifest
)

// digest is a SHA-256 hash. That of a page of zeros is never computed: it is the zero value.
type digest [32]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// ID names an image: the SHA-256 of its manifest, 64 lower-case hex digits.
type ID string

// Facts is what the caller needs to know about an image before it restores it, such as the version of gVisor. It is
// stored in the manifest, and the ID authenticates it. Keys and values are UTF-8.
type Facts map[string]string

// Image describes a stored image.
type Image struct {
	ID        ID
	Size      int64 // bytes of its three files
	Pages     int64 // pages of 4 KiB
	ZeroPages int64 // of these, pages of zeros
	// AddedBytes is the disk space that Add used for the image, in bytes: pages, index, manifest, small files. The
	// cached copy, which can be removed at any time, does not count, nor does the init, which is shared. It is 0 from
	// Stat and List.
	AddedBytes int64
	Facts      Facts
}

// encode returns the canonical encoding of facts.
func (f Facts) encode() ([]byte, error) {
	if f == nil {
		f = Facts{}
	}
	for k, v := range f {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, fault.New(fault.Invalid, "fact %q of a memory image is not UTF-8", k)
		}
	}
	b, err := json.Marshal(f)
	if err == nil && len(b) > maxFacts {
		err = fault.New(fault.Invalid,
			"the facts of a memory image have %d bytes, more than the limit of %d", len(b), maxFacts)
	}
	return b, err
}

// parseID returns the digest of an id, and false if it is malformed. Only ids that it accepts become file names.
func parseID(s string) (d digest, ok bool) {
	if len(s) != 2*len(d) {
		return d, false
	}
	if n, err := hex.Decode(d[:], []byte(s)); err != nil || n != len(d) {
		return d, false
	}
	return d, d.String() == s
}
