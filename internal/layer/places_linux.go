package layer

import (
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// places are paths of interest to a walk, relative to the directory that it is in;
// "" is the directory itself. They get fewer on the way down, so that a walk need not
// join and compare the path of each entry.
type places []string

// newPlaces makes the places of paths for a walk that begins at the root.
func newPlaces(paths []string) (p places) {
	for _, s := range paths {
		p = append(p, path.Clean("/" + s)[1:])
	}
	return p
}

// has reports whether rel is one of the places.
func (p places) has(rel string) bool { return slices.Contains(p, rel) }

// below gives the places at and below the entry name, as that sees them.
func (p places) below(name string) (in places) {
	for _, rel := range p {
		if first, rest, _ := strings.Cut(rel, "/"); rel != "" && first == name {
			in = append(in, rest)
		}
	}
	return in
}

// here reports whether the directory is one of the places, or lies in one.
func (p places) here() bool { return p.has("") }

// in gives the places as the entry name sees them, and whether there are any: within
// a place everything is.
func (p places) in(name string) (places, bool) {
	if p.here() {
		return places{""}, true
	}
	in := p.below(name)
	return in, len(in) > 0
}

// trail is where a recursion is, as the names on the way down. The path is joined when
// it is asked for.
type trail struct {
	up   *trail // nil: name is the whole path, without a slash at its end
	name string
}

func (t *trail) down(name string) *trail { return &trail{t, name} }

// tail gives the path, or when that is longer than n bytes, an end of it cut at a name.
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

// String is the path for messages: of a long one, the end.
func (t *trail) String() string {
	p, whole := t.tail(limit.MessagePath)
	if !whole {
		return "..." + p
	}
	return p
}

// tooDeep refuses a directory below the depth that walks go to.
func tooDeep(depth int, at any) error {
	if depth <= limit.Depth {
		return nil
	}
	return fault.New(fault.TooLarge, "more than %d directories lie one in another, at %q", limit.Depth, at).
		WithHint("remove them in the sandbox, as in: coppice exec NAME -- rm -rf DIRECTORY")
}
