// Package format encodes and decodes the manifest of a layer, and writes the layer as a tar stream. It touches no
// disk: it reads and writes only its arguments. docs/FORMAT.md has the grammar. Package layer uses it; it imports
// only fault.
package format

import (
	"crypto/sha256"
	"encoding/hex"
)

// Magic is the first line of a manifest. The number is the version.
const Magic = "coppice layer 1"

// magicSparse is the first line of a manifest with a sparse file. All others keep version 1, so that the
// digest of a layer does not depend on the version that finalized it.
const magicSparse = "coppice layer 2"

// sparseFile is the type that a manifest gives a File with a SparseHash.
const sparseFile = 'F'

// SparseBlock is the block size of SparseHash, in bytes.
const SparseBlock = 4096

// Type is the kind of an entry, as a manifest writes it.
type Type byte

// The types.
const (
	Dir      Type = 'd'
	Opaque   Type = 'o' // a directory that hides what lower layers have at its path
	File     Type = 'f'
	Hardlink Type = 'h' // a further name of an earlier file
	Symlink  Type = 'l'
	FIFO     Type = 'p'
	Socket   Type = 's'
	Char     Type = 'c'
	Block    Type = 'b'
	Whiteout Type = 'w' // hides the path in lower layers
)

// Entry is one path of a layer.
type Entry struct {
	Path   string // relative to the layer's root, no slash at either end; "" is the root
	Type   Type
	Mode   uint32 // permission, setuid, setgid and sticky bits
	UID    uint32
	GID    uint32
	Mtime  int64             // nanoseconds since 1970
	Size   int64             // of a file
	Sum    [sha256.Size]byte // of a file's content
	Sparse bool              // of a file: Sum is a SparseHash
	Link   string            // target of a symlink; path of the earlier name of a hardlink
	Major  uint32            // of a device
	Minor  uint32
	Xattrs []Xattr // sorted by key, each key once
}

// Xattr is an extended attribute.
type Xattr struct{ Key, Value string }

// IsDir reports whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.Type == Dir || e.Type == Opaque }

// Digest returns a SHA-256 as "sha256:" and hex digits.
func Digest(sum []byte) string { return "sha256:" + hex.EncodeToString(sum) }

// Less orders paths as in a manifest: each directory before its content, and names by their bytes.
func Less(a, b string) bool {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			// A separator sorts before every byte of a name.
			return a[i] == '/' || b[i] != '/' && a[i] < b[i]
		}
	}
	return len(a) < len(b)
}
