package rootspec

import (
	"path"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Access describes which parts of a live root can be changed from inside, and which files of the host are shown in
// it. Paths are absolute, and none may lead through a symbolic link, which the sandbox could change. The zero value
// restricts nothing.
type Access struct {
	// ReadOnly are paths that cannot be changed, including everything below them.
	ReadOnly []Place `json:"read_only,omitempty"`
	// Only makes everything read-only, except Writable and the writable Mounts.
	Only     bool        `json:"only,omitempty"`
	Writable []Place     `json:"writable,omitempty"`
	Mounts   []HostMount `json:"mounts,omitempty"`
	// Ignored are directories of the sandbox's own, outside of all layers, that are mounted at paths inside: no history
	// contains what is written there. From is "" until the sandbox is about to start, and Write is true.
	Ignored []HostMount `json:"ignored,omitempty"`
	// Decoys are files in memory that are shown read-only.
	Decoys []Decoy `json:"decoys,omitempty"`
}

// Decoy is a honeytoken: a file whose opening is reported. It has its own inode: see Sources.Decoys.
type Decoy struct {
	At      string    `json:"at"` // path inside
	Text    []byte    `json:"text"`
	Mode    uint32    `json:"mode"` // permission bits
	ModTime time.Time `json:"mod_time"`
}

// Place is a path in a policy.
type Place struct {
	Said string   `json:"said"`
	At   []string `json:"at"` // possible paths inside; all that exist are meant
}

// HostMount mounts a directory or regular file of the host at a path inside.
type HostMount struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Write bool   `json:"write,omitempty"`
}

// Point is a mount point in a root.
type Point struct {
	Path string `json:"path"`
	File bool   `json:"file,omitempty"` // a regular file, not a directory
	// UID and GID are the owner of the directories that are created for it, as stored: 0 is root of the sandbox.
	UID uint32 `json:"uid,omitempty"`
	GID uint32 `json:"gid,omitempty"`
}

// IsZero reports whether a restricts nothing.
func (a Access) IsZero() bool {
	return len(a.ReadOnly) == 0 && !a.Only && len(a.Writable) == 0 && len(a.mounted()) == 0 && len(a.Decoys) == 0
}

// mounted returns the mounts of directories and files, in the order of Sources.
func (a Access) mounted() []HostMount { return slices.Concat(a.Mounts, a.Ignored) }

// Fixed returns the paths inside at which a mounts something: neither they nor their parent directories can be
// renamed or removed.
func (a Access) Fixed() []string {
	var all []string
	for _, list := range [][]Place{a.ReadOnly, a.Writable} {
		for _, p := range list {
			all = append(all, p.At...)
		}
	}
	for _, m := range a.mounted() {
		all = append(all, m.To)
	}
	for _, d := range a.Decoys {
		all = append(all, d.At)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Kept returns the paths of Fixed that always have mounts: a writable path within a writable path needs none.
func (a Access) Kept() []string {
	var writable []string
	for _, p := range a.Writable {
		writable = append(writable, p.At...)
	}
	slices.Sort(writable)
	a.Writable = []Place{{At: Outermost(writable)}}
	return a.Fixed()
}

// Validate checks the value of a, without accessing the host. Its errors are of kind fault.Invalid.
func (a Access) Validate() error {
	for _, p := range a.Fixed() {
		if !isClean(p) {
			return fault.New(fault.Invalid, "root: invalid path %q: must be absolute and clean", p)
		}
		if p != "/" && slices.ContainsFunc(Reserved, func(r string) bool { return Within(p, r) }) {
			return fault.New(fault.Invalid, "invalid path %q: managed by the sandbox", p).
				WithHint("choose a path outside %s", strings.Join(Reserved, ", "))
		}
	}
	for _, list := range [][]Place{a.ReadOnly, a.Writable} {
		for _, p := range list {
			if len(p.At) == 0 {
				return fault.New(fault.Invalid, "root: invalid mount: %q has no target", p.Said)
			}
		}
	}
	for i, m := range a.Mounts {
		if !isClean(m.From) || m.To == "/" {
			return fault.New(fault.Invalid, "root: invalid mount of %q of the host at %q", m.From, m.To)
		}
		if slices.ContainsFunc(a.Mounts[:i], func(o HostMount) bool { return o.To == m.To }) {
			return fault.New(fault.Invalid, "duplicate mount at %q", m.To).WithHint("remove one of them")
		}
	}
	if err := a.validateIgnored(); err != nil {
		return err
	}
	for i, d := range a.Decoys {
		if d.At == "/" || len(d.Text) > maxDecoy {
			return fault.New(fault.Invalid, "root: invalid honeytoken of %d bytes at %q", len(d.Text), d.At)
		}
		same := func(p string) bool { return Within(p, d.At) || Within(d.At, p) && p != "/" }
		if slices.ContainsFunc(a.Decoys[:i], func(o Decoy) bool { return same(o.At) }) ||
			slices.ContainsFunc(a.Mounts, func(m HostMount) bool { return same(m.To) }) {
			return fault.New(fault.Invalid, "cannot place a honeytoken at %q: it overlaps a mount or another honeytoken", d.At).
				WithHint("remove one of them")
		}
	}
	return nil
}

// validateIgnored refuses ignored paths that overlap another path of a. A mount in an ignored directory would have its
// mount point there, and the content of an ignored directory is writable.
func (a Access) validateIgnored() error {
	type other struct{ at, why string }
	var others []other
	for _, m := range a.Mounts {
		others = append(others, other{m.To, "where the policy mounts " + m.From})
	}
	for _, d := range a.Decoys {
		others = append(others, other{d.At, "which is a honeytoken"})
	}
	for _, r := range a.ReadOnly {
		for _, at := range r.At {
			others = append(others, other{at, "which is read-only"})
		}
	}
	for _, g := range a.Ignored {
		if g.To == "/" {
			return fault.New(fault.Invalid, "cannot ignore the whole root").WithHint("name directories in it")
		}
		for _, o := range others {
			if Within(g.To, o.at) || Within(o.at, g.To) {
				return fault.New(fault.Invalid, "cannot ignore %s: it overlaps %s, %s", g.To, o.at, o.why).
					WithHint("remove one of them")
			}
		}
		if a.Only && !slices.ContainsFunc(a.Writable, func(w Place) bool {
			return slices.ContainsFunc(w.At, func(at string) bool { return Within(g.To, at) })
		}) {
			return fault.New(fault.Invalid, "cannot ignore %s: it is not in the paths of files.writable", g.To).
				WithHint("add it to files.writable")
		}
		others = append(others, other{g.To, "which is ignored"})
	}
	return nil
}

// maxDecoy is the maximum size of a decoy, in bytes: decoys are in memory.
const maxDecoy = 64 << 10

// Bare returns the paths of a's decoys that are in no overlay of s.
func (s Spec) Bare(a Access) (out []Point) {
	for _, d := range a.Decoys {
		if s.deepest(d.At) < 0 {
			out = append(out, Point{Path: d.At, File: true})
		}
	}
	return out
}

// above lists the parent directories of paths, except the root, outermost first.
func above(paths []string) []string {
	var all []string
	for _, p := range paths {
		for d := path.Dir(p); d != "/" && d != "."; d = path.Dir(d) {
			all = append(all, d)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Outermost returns the sorted paths without those that are within another one.
func Outermost(paths []string) []string {
	var out []string
	for _, p := range paths {
		if !slices.ContainsFunc(out, func(o string) bool { return Within(p, o) }) {
			out = append(out, p)
		}
	}
	return out
}

// deepest returns the index of the innermost overlay that contains p, or -1.
func (s Spec) deepest(p string) int {
	at := -1
	for i, o := range s.Overlays {
		if Within(p, o.Target) && (at < 0 || len(o.Target) > len(s.Overlays[at].Target)) {
			at = i
		}
	}
	return at
}

// points returns the points in the overlay i, by paths relative to it; -1 selects the points in no overlay.
func (s Spec) points(i int) []Point {
	var out []Point
	for _, p := range s.Points {
		if s.deepest(p.Path) != i {
			continue
		}
		if i >= 0 {
			p.Path = strings.TrimPrefix(strings.TrimPrefix(p.Path, s.Overlays[i].Target), "/")
			if p.Path == "" {
				continue // it exists
			}
		}
		out = append(out, p)
	}
	return out
}
