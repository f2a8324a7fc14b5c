package rootspec

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Overlayfs refuses whiteouts in its own mounts, such as the root of a container. The layers of a home there record
// removals as files: empty ones with the mode RemovalMode and the attribute RemovalXattr. Overlayfs, and a capture of a
// plain tree, escape what a program sets under that name.
const (
	RemovalMode  = 0o400
	RemovalXattr = "user.overlay.whiteout"
)

// The form of the tree of a layer is the value of the attribute MarksXattr of the tree's parent directory. A tree
// without the attribute is of an earlier version.
const (
	MarksXattr = "user.coppice.marks"
	MarksPlain = "2" // the form of overlayfs
	MarksFiles = "3" // the same, with removals as files
)

// Marks returns the form of the tree of a layer, "" if it has none.
func Marks(tree string) string {
	var b [8]byte
	n, err := unix.Getxattr(filepath.Dir(tree), MarksXattr, b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

// IsRemoval reports whether an entry of a tree of the form MarksFiles, with the state st, is a removal.
func IsRemoval(path string, st *unix.Stat_t) bool {
	if st.Mode != unix.S_IFREG|RemovalMode || st.Size != 0 {
		return false
	}
	_, err := unix.Lgetxattr(path, RemovalXattr, nil)
	return err == nil
}
