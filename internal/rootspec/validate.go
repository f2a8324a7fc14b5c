package rootspec

import (
	"path"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// MaxLowers is the maximum number of lower directories of one overlay: OVL_MAX_STACK of the kernel
// (fs/overlayfs/params.h).
const MaxLowers = 500

// Reserved lists the paths of a live root that belong to the sandbox's init: it mounts its own file systems there, so
// no part of a root is at or below them, and a read-only skeleton always has them as empty directories.
var Reserved = []string{"/dev", "/proc", "/run", "/sys", "/tmp"}

// Validate checks the value of s, without accessing the host. Its errors are of kind fault.Invalid.
func (s Spec) Validate() error {
	if (s.Bind == "") == (len(s.Overlays) == 0) {
		return fault.New(fault.Invalid, "root: exactly one of a bound directory and overlays is required")
	}
	if s.Bind != "" && !isClean(s.Bind) {
		return fault.New(fault.Invalid, "root: invalid path %q: must be absolute and clean", s.Bind)
	}
	seen := map[string]bool{}
	for i, o := range s.Overlays {
		if err := o.validate(); err != nil {
			return err
		}
		if o.Target == "/" && i > 0 {
			return fault.New(fault.Invalid, "root: the overlay of / must come first")
		}
		if seen[o.Target] {
			return fault.New(fault.Invalid, "root: duplicate overlay at %q", o.Target)
		}
		for t := range seen {
			if Within(t, o.Target) {
				return fault.New(fault.Invalid, "root: the overlay of %q must come after that of %q", t, o.Target)
			}
		}
		seen[o.Target] = true
	}
	if len(s.Skeleton) > 0 && (s.Bind != "" || seen["/"]) {
		return fault.New(fault.Invalid, "root: a skeleton requires a root without its own overlay")
	}
	for _, e := range s.Skeleton {
		if !isClean(e.Path) || e.Path == "/" || hasNUL(e.Link) {
			return fault.New(fault.Invalid, "root: invalid skeleton entry %q", e.Path)
		}
	}
	for _, f := range s.Files {
		if !isClean(f.Source) || !isClean(f.Target) || f.Target == "/" {
			return fault.New(fault.Invalid, "root: invalid file %q at %q", f.Source, f.Target)
		}
	}
	for _, h := range s.Hide {
		if !isClean(h) || h == "/" {
			return fault.New(fault.Invalid, "root: cannot hide %q", h)
		}
	}
	for _, p := range s.Points {
		if !isClean(p.Path) || p.Path == "/" {
			return fault.New(fault.Invalid, "root: cannot mount at %q", p.Path)
		}
	}
	return nil
}

func (o Overlay) validate() error {
	if !isClean(o.Target) {
		return fault.New(fault.Invalid, "root: invalid overlay target %q: must be absolute and clean", o.Target)
	}
	for _, r := range Reserved {
		if Within(o.Target, r) {
			return fault.New(fault.Invalid, "root: invalid overlay target %q: managed by the sandbox", o.Target)
		}
	}
	if n := len(o.Lowers); n == 0 || n > MaxLowers {
		return fault.New(fault.Invalid, "root: overlay of %q has %d lower directories: must be 1 to %d", o.Target,
			n, MaxLowers)
	}
	for _, l := range append([]string{o.Upper, o.Work}, o.Lowers...) {
		if !isClean(l) {
			return fault.New(fault.Invalid, "root: overlay of %q: invalid path %q: must be absolute and clean", o.Target, l)
		}
	}
	return nil
}

// Within reports whether the clean absolute path p is dir or is below it.
func Within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

func isClean(p string) bool {
	return strings.HasPrefix(p, "/") && path.Clean(p) == p && !hasNUL(p)
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
