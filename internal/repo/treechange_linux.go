package repo

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// treeChange is one path that two trees differ in, a directory or what lies in one.
type treeChange struct {
	path      string
	old, mode Mode // 0 where there is none
	oldID, id OID
	stat      stat // of what was written for it
}

// treeChanges gives all paths that differ, also directories, in git's order: by the bytes
// of the path, where that of a directory has a slash at its end. From "" is the empty
// tree. Invalid where a path is none that can be checked out.
func (r *Repo) treeChanges(ctx context.Context, from, to OID) ([]treeChange, error) {
	if from == "" {
		from = r.Format.emptyTree()
	}
	raw := &rawReader{most: math.MaxInt}
	s := &splitter{end: 0, fn: raw.record}
	_, err := r.user(ctx, call{args: []string{"diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-relative",
		"--ignore-submodules=none", "--end-of-options", string(from), string(to)}, stdout: s, most: math.MaxInt64})
	switch {
	case s.err != nil:
		return nil, s.err
	case err != nil:
		return nil, fault.Wrap(err, "compare %s and %s", from, to)
	case len(s.rest) > 0:
		return nil, errRaw
	}
	if err := raw.end(); err != nil {
		return nil, err
	}
	changes := make([]treeChange, len(raw.changes))
	for i, c := range raw.changes {
		changes[i] = treeChange{path: c.Path, old: c.OldMode, mode: c.Mode, oldID: c.OldID, id: c.ID}
	}
	return changes, nil
}

// emptyTree is the tree without anything, which every repository has.
func (f Format) emptyTree() OID {
	if f == SHA256 {
		return "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	return "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
}

// dirSet is a set of directories, with all that lie above each.
type dirSet map[string]bool

// above adds the directories that a path lies in.
func (d dirSet) above(path string) {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		d.add(path[:i])
	}
}

func (d dirSet) add(dir string) {
	for !d[dir] {
		d[dir] = true
		i := strings.LastIndexByte(dir, '/')
		if i < 0 {
			return
		}
		dir = dir[:i]
	}
}

// sorted gives each directory behind the one that it lies in.
func (d dirSet) sorted() []string { return slices.Sorted(maps.Keys(d)) }
