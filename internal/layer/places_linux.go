package layer

import (
	"cmp"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// places are the paths of interest to a walk, relative to its current directory. A walk asks at each entry, and the
// client chooses the number of paths, so a step down is a binary search and allocates nothing.
type places struct {
	list []string // clean and relative to the root of the walk, in the order of byNames
	skip int      // bytes of each path that lead to the directory
}

// everywhere is the place that contains everything.
func everywhere() places { return places{list: []string{""}} }

// newPlaces returns the places of paths, for a walk that begins at the root.
func newPlaces(paths []string) (p places) {
	for _, s := range paths {
		p.list = append(p.list, path.Clean("/" + s)[1:])
	}
	slices.SortFunc(p.list, byNames)
	return p
}

// byNames compares paths name by name, so that those in one directory are adjacent.
func byNames(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		switch x, y := a[i], b[i]; {
		case x == y:
		case x == '/':
			return -1
		case y == '/':
			return 1
		default:
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// rest returns a path relative to the directory; "" is the directory itself.
func (p places) rest(s string) string { return s[min(p.skip, len(s)):] }

// none reports whether no place is at or below the directory.
func (p places) none() bool { return len(p.list) == 0 }

// here reports whether the directory is one of the places, or is inside one.
func (p places) here() bool { return len(p.list) > 0 && p.rest(p.list[0]) == "" }

// below returns the places at and below the entry name, relative to it.
func (p places) below(name string) places {
	first := func(s string) string {
		name, _, _ := strings.Cut(p.rest(s), "/")
		return name
	}
	from, _ := slices.BinarySearchFunc(p.list, name, func(s, name string) int { return cmp.Compare(first(s), name) })
	n := sort.Search(len(p.list)-from, func(i int) bool { return first(p.list[from+i]) != name })
	return places{p.list[from : from+n], p.skip + len(name) + 1}
}

// in returns the places relative to the entry name, and whether there are any. Everything inside a place is a place.
func (p places) in(name string) (places, bool) {
	if p.here() {
		return everywhere(), true
	}
	in := p.below(name)
	return in, !in.none()
}

// trail is the position of a recursion, as the names on the way down. The path is joined on demand.
type trail struct {
	up   *trail // nil: name is the whole path, without a slash at its end
	name string
}

func (t *trail) down(name string) *trail { return &trail{t, name} }

// tail returns the path, or if it is longer than n bytes, its end, cut at a name.
func (t *trail) tail(n int) (path string, whole bool) {
	var names []string
	size := 0
	for ; t != nil && size <= n; t = t.up {
		names = append(names, t.name)
		size += 1 + len(t.name)
	}
	slices.Reverse(names)
	path = strings.Join(names, "/")
	if t != nil {
		return "/" + path, false
	}
	return path, true
}

// String returns the path for messages; of a long path, only the end.
func (t *trail) String() string {
	p, whole := t.tail(limit.MessagePath)
	if !whole {
		return "..." + p
	}
	return p
}

// tooDeep returns TooLarge for a directory deeper than limit.Depth.
func tooDeep(depth int, at any) error {
	if depth <= limit.Depth {
		return nil
	}
	return fault.New(fault.TooLarge, "directories are nested more than %d deep at %q", limit.Depth, at).
		WithHint("remove them in the sandbox: coppice exec NAME -- rm -rf DIRECTORY")
}
