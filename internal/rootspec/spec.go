// Package rootspec describes how the live root of a sandbox is assembled: as a value that a driver (rootfs) computes,
// the engine passes on, and the monitor (box) applies with Mount in a separate mount namespace. It imports only dirfd
// and fault.
package rootspec

import (
	"path"
	"slices"
)

// Spec describes a live root. Exactly one of Bind and Overlays is set.
type Spec struct {
	// Bind is the host path of a plain directory to use as the root: drivers copy and btrfs.
	Bind string `json:"bind,omitempty"`
	// Overlays are mounted in order, parents before children. If none has Target "/", the root is a read-only tmpfs
	// with Skeleton and the mount points.
	Overlays []Overlay `json:"overlays,omitempty"`
	// Skeleton is the content of the tmpfs root in addition to mount points.
	Skeleton []Entry `json:"skeleton,omitempty"`
	// Files are single files (host paths) that are bind-mounted read-only: files that are mount points on the host.
	Files []File `json:"files,omitempty"`
	// Hide lists absolute paths inside that are covered by an empty read-only tmpfs after everything else is mounted:
	// the paths of the store.
	Hide []string `json:"hide,omitempty"`
	// Points are created where nothing else exists, so that something can be mounted at them: in a layer below all
	// others of their overlay, or in the skeleton. A bound directory is not changed.
	Points []Point `json:"points,omitempty"`
}

// Overlay is one overlayfs mount with the option userxattr.
type Overlay struct {
	Target string   `json:"target"` // absolute path inside, "/" or "/usr"
	Lowers []string `json:"lowers"` // host paths, topmost first, at least one
	Upper  string   `json:"upper"`  // host path
	Work   string   `json:"work"`   // host path, same file system as Upper
	// Wrap is set if the last lower contains the store, so that the other lowers are below it, which overlayfs
	// refuses with ELOOP: Mount then replaces it with a read-only overlay of {last lower, empty tmpfs directory}.
	Wrap bool `json:"wrap,omitempty"`
}

// Entry is a directory or symbolic link of the skeleton.
type Entry struct {
	Path string `json:"path"`           // absolute, inside
	Link string `json:"link,omitempty"` // target, if it is a symbolic link
	Mode uint32 `json:"mode,omitempty"` // permission bits of a directory; 0 means no permissions
}

// File mounts the host file Source, read-only, at Target inside.
type File struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Part is a place where changes of the live root appear: the tree at Dir (host path) holds the changes of the
// subtree at Path (absolute, inside). For driver overlay it is in overlay form (whiteouts, opaque markers);
// for the others it is the plain tree itself.
type Part struct {
	Dir  string `json:"dir"`
	Path string `json:"path"`
}

// Places returns the cleaned paths of parts.
func Places(parts []Part) []string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = path.Clean(p.Path)
	}
	return out
}

// Workshop is the directory in the root of an overlay mount in which init prepares the rename(2) of a lower
// directory. If it exists while nothing runs, a rename was interrupted, or the sandbox created it. The next init
// undoes the rename.
const Workshop = ".coppice-promote"

// Stack lists the directories that make up a live root, as host paths.
type Stack struct {
	// Host is set for base "host": the host's own root is the base.
	Host bool `json:"host,omitempty"`
	// Layers are the fs trees of layers, topmost first; without Host the last one is the base.
	Layers []string `json:"layers"`
	// Mask is the layer of Layers that hides paths of the layers below it and of the host; "" if there is none.
	Mask string `json:"mask,omitempty"`
	// Identity is the topmost layer of Layers, which has the sandbox's own machine ID; "" if there is none.
	Identity string `json:"identity,omitempty"`
}

// Differing returns the trees in which the roots of two stacks can differ: the layers that only one of the stacks
// has. The remaining, lowest layers are common to both.
func Differing(a, b Stack) (trees []Part) {
	for _, dir := range difference(a.Unidentified().Layers, b.Unidentified().Layers) {
		trees = append(trees, Part{Dir: dir, Path: "/"})
	}
	return trees
}

// Unidentified returns the stack without its identity, which is in no state of the history.
func (s Stack) Unidentified() Stack {
	if s.Identity != "" {
		s.Layers = slices.DeleteFunc(slices.Clone(s.Layers), func(dir string) bool { return dir == s.Identity })
		s.Identity = ""
	}
	return s
}

func difference(a, b []string) []string {
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return slices.Concat(a, b)
}
