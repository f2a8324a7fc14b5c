package repo

import (
	"context"
	"math"

	"github.com/coppice-dev/coppice/internal/fault"
)

// treeChanges returns all paths that differ, including directories, in git's order: by the bytes of the path, with a
// slash after that of a directory. From "" is the empty tree. Invalid: a path cannot be checked out.
func (r *Repo) treeChanges(ctx context.Context, from, to OID) ([]treeChange, error) {
	if from == "" {
		from = r.Format.emptyTree()
	}
	raw := &rawReader{most: math.MaxInt}
	s := &splitter{end: 0, fn: raw.record}
	_, err := r.user(ctx,
		call{args: []string{"diff-tree", "-r", "-t", "-z", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff",
			"--no-relative",
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
