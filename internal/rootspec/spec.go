// Package rootspec says how the live root of a sandbox is put together: a value
// that a driver (rootfs) computes, that the engine passes on, and that the
// keeper (box) carries out with Mount in its own mount namespace. It
// imports fault alone.
package rootspec

import (
	"path"
	"slices"
)

// Spec describes a live root. Exactly one of Bind and Overlays is used.
type Spec struct {
	// Bind is a plain directory (host path) that is the root: drivers copy and
	// btrfs.
	Bind string `json:"bind,omitempty"`
	// Overlays are mounted in order, parents before children. When none has
	// Target "/", the root is a read-only tmpfs that holds Skeleton and the
	// mount points.
	Overlays []Overlay `json:"overlays,omitempty"`
	// Skeleton is what the tmpfs root holds besides mount points.
	Skeleton []Entry `json:"skeleton,omitempty"`
	// Files are single files (host paths) bound read-only at a place in the
	// root, for files that are mount points of their own on the host.
	Files []File `json:"files,omitempty"`
	// Hide lists absolute paths inside that are covered by an empty read-only
	// tmpfs after everything else is mounted: the store itself.
	Hide []string `json:"hide,omitempty"`
	// Points are shown where nothing else is, so that something can be mounted at
	// them: in a layer below all others of their overlay, or in the skeleton. A bound
	// directory is left as it is.
	Points []Point `json:"points,omitempty"`
}

// Overlay is one overlayfs mount with the option userxattr.
type Overlay struct {
	Target string   `json:"target"` // absolute path inside, "/" or "/usr"
	Lowers []string `json:"lowers"` // host paths, topmost first, at least one
	Upper  string   `json:"upper"`  // host path
	Work   string   `json:"work"`   // host path, same file system as Upper
	// Wrap is set when the last lower contains the store (so that the other
	// lowers lie below it, which overlayfs refuses with ELOOP): Mount then puts
	// a read-only overlay of {last lower, empty tmpfs directory} in its place.
	Wrap bool `json:"wrap,omitempty"`
}

// Entry is a directory or symbolic link of the skeleton.
type Entry struct {
	Path string `json:"path"`           // absolute, inside
	Link string `json:"link,omitempty"` // target, when a symbolic link
	Mode uint32 `json:"mode,omitempty"` // permission bits, when a directory; 0 is no permission
}

// File binds host file Source, read-only, at Target inside.
type File struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Part is a place where changes of the live root appear: the tree at Dir (host
// path) holds the changes of the subtree at Path (absolute, inside). In overlay
// form (whiteouts, opaque markers) for driver overlay; the plain tree itself for
// the others.
type Part struct {
	Dir  string `json:"dir"`
	Path string `json:"path"`
}

// Places returns the paths of parts, cleaned.
func Places(parts []Part) []string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = path.Clean(p.Path)
	}
	return out
}

// Workshop is the directory in the root of an overlay mount in which init builds
// what a rename(2) of a lower directory needs. One that is found when nothing runs
// belongs to a rename that was cut off, or was made by the sandbox itself. The
// next init takes the rename back.
const Workshop = ".coppice-promote"

// Stack is what a live root is made of, as host paths.
type Stack struct {
	// Host is set for base "host": the host's own root is at the bottom.
	Host bool `json:"host,omitempty"`
	// Layers are fs trees of layers, topmost first; without Host the last one
	// is the base.
	Layers []string `json:"layers"`
	// Mask is the one of Layers that hides paths of those below it and of the host; ""
	// is none.
	Mask string `json:"mask,omitempty"`
}

// Differing returns the trees in which the roots of two stacks can differ: the layers that only one of the
// stacks has. Both end in the layers that they have in common.
func Differing(a, b Stack) (trees []Part) {
	for _, dir := range difference(a.Layers, b.Layers) {
		trees = append(trees, Part{Dir: dir, Path: "/"})
	}
	return trees
}

func difference(a, b []string) []string {
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return slices.Concat(a, b)
}
