package repo

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// underway are files of a git directory that exist during an unfinished operation.
var underway = map[string]string{
	"MERGE_HEAD": "git merge --abort", "CHERRY_PICK_HEAD": "git cherry-pick --abort", "REVERT_HEAD": "git revert --abort",
	"rebase-merge": "git rebase --abort", "rebase-apply": "git rebase --abort, or git am --abort",
}

// inTheWay refuses a work tree with uncommitted changes, and one with untracked files at paths to be created. The
// caller holds the lock of the index. It leaves a private index in which git has refreshed every file, the most
// expensive step of an apply.
func (r *Repo) inTheWay(ctx context.Context, changes []Change) error {
	for name, mend := range underway {
		if _, err := os.Lstat(filepath.Join(r.Dir, name)); err == nil {
			return fault.New(fault.Conflict, "a git operation is in progress in %s", r.Top).WithHint("abort it first: %s", mend)
		}
	}
	if err := r.copyIndex(); err != nil {
		return err
	}
	out, err := r.private(ctx,
		call{args: []string{"status", "--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=dirty",
			"--no-renames"}, env: []string{"GIT_OPTIONAL_LOCKS=1"}})
	if err != nil {
		return fault.Wrap(err, "read the status of the work tree %s", r.Top)
	}
	paths, err := parseStatus(string(out))
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		return fault.New(fault.Conflict, "%s has uncommitted changes", r.Top).Because(&Dirty{paths}).
			WithHint("commit them, or stash them: git stash")
	}
	if paths, err = r.untracked(ctx, changes); err != nil {
		return fault.Wrap(err, "read the status of the work tree %s", r.Top)
	}
	if len(paths) > 0 {
		return fault.New(fault.Conflict, "untracked files in %s would be overwritten", r.Top).Because(&Dirty{paths}).
			WithHint("move them away: mv %s %s.mine", printable(clip(paths[0])), printable(clip(paths[0])))
	}
	return nil
}

// untracked returns files in the work tree that are not in the old tree, at paths to be created. git itself would
// overwrite ignored ones. Paths of the old tree that are in the way are among the changes, since the changes
// remove them.
func (r *Repo) untracked(ctx context.Context, changes []Change) (paths []string, err error) {
	old := listing{}
	for _, c := range changes {
		if c.OldMode != 0 {
			old[c.Path] = entry{c.OldMode, c.OldID}
		}
	}
	dirs := old.dirs()
	told := map[string]bool{}
	tell := func(p string) {
		if !told[p] {
			told[p], paths = true, append(paths, p)
		}
	}
	for _, c := range changes {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if c.Mode == 0 {
			continue
		}
		for at := path.Dir(c.Path); at != "."; at = path.Dir(at) {
			if info, err := os.Lstat(filepath.Join(r.Top, at)); err == nil && !info.IsDir() && !tracked(old, at) {
				tell(at)
			}
		}
		info, err := os.Lstat(filepath.Join(r.Top, c.Path))
		switch {
		case err != nil || tracked(old, c.Path):
		case info.IsDir() && dirs[c.Path]:
			if err := r.below(ctx, old, c.Path, tell); err != nil {
				return nil, err
			}
		case info.IsDir() && c.Mode == ModeSubmodule:
		default:
			tell(c.Path)
		}
	}
	return paths, nil
}

// tracked reports whether the old tree has a path.
func tracked(old listing, p string) bool {
	_, has := old[p]
	return has
}

// below calls tell for the entries of a directory that the old tree does not have. It only fails with the error
// of ctx.
func (r *Repo) below(ctx context.Context, old listing, dir string, tell func(string)) error {
	return filepath.WalkDir(filepath.Join(r.Top, dir), func(name string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := strings.TrimPrefix(name, r.Top+"/")
		if err != nil || !e.IsDir() && !tracked(old, p) {
			tell(p)
		}
		return nil
	})
}

// at returns what is at a path of the user's work tree, without following links; nil if it does not exist.
func at(tree *os.Root, p string) (fs.FileInfo, error) {
	for i := range len(p) {
		if p[i] != '/' {
			continue
		}
		if info, err := tree.Lstat(p[:i]); err != nil || !info.IsDir() {
			return nil, none(err)
		}
	}
	info, err := tree.Lstat(p)
	if err != nil {
		return nil, none(err)
	}
	return info, nil
}

// none returns nil for an error that means that a file does not exist.
func none(err error) error {
	if err == nil || gone(err) {
		return nil
	}
	return err
}
