package repo

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// walk compares a hostile work tree with a listing. It opens only directories and regular files, and follows no
// link. For the walk, as for git, a path behind a link does not exist. It opens each directory and file with one
// system call, and decides on each directory once, so that the work grows with the number of entries and not with
// their depth.
type walk struct {
	tree   *os.File
	base   listing
	dirs   map[string]bool // of base
	format Format
	rules  *ignoreRules
	limits Limits
	plain  map[string]bool // submodules of base whose files are compared as plain files

	met     int             // number of entries in all directories
	held    int             // bytes of names and paths in memory
	calls   int             // number of files and directories that were opened or examined
	decided map[string]bool // directories above roots, and whether they are entered
	seen    map[string]bool // paths of base that are unchanged or in found
	found   []found
	skipped []Skipped
}

// all walks over some paths, or everything, and adds deleted paths.
func (w *walk) all(ctx context.Context, paths []string) error {
	roots, err := w.tops(ctx, paths)
	if err != nil {
		return err
	}
	for _, p := range roots {
		is, err := w.leadsTo(ctx, p)
		switch {
		case err != nil || !is:
		case p == "":
			err = w.enter(ctx, "")
		default:
			err = w.one(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	if err := w.gone(ctx, roots); err != nil {
		return err
	}
	slices.SortFunc(w.found, func(a, b found) int { return strings.Compare(a.path, b.path) })
	return nil
}

// one walks the entry at a path.
func (w *walk) one(ctx context.Context, p string) error {
	f, err := w.open(up(p))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	below, err := w.entries(ctx, f, up(p), []string{path.Base(p)})
	f.Close()
	for i := 0; err == nil && i < len(below); i++ {
		err = w.enter(ctx, join(up(p), below[i]))
	}
	return err
}

// tops returns paths, sorted, without those below others; "" is everything.
func (w *walk) tops(ctx context.Context, paths []string) (roots []string, _ error) {
	if len(paths) == 0 {
		return []string{""}, nil
	}
	var above []string // prefixes of the current path, among the roots
	for _, p := range slices.Sorted(maps.Keys(set(paths))) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if why := badPath(p); why != "" {
			if err := w.skip(p, why); err != nil {
				return nil, err
			}
			continue
		}
		// The paths below a root follow it directly, so each root is pushed and popped once.
		for len(above) > 0 && !strings.HasPrefix(p, above[len(above)-1]) {
			above = above[:len(above)-1]
		}
		if !slices.ContainsFunc(above, func(root string) bool { return p[len(root)] == '/' }) {
			roots, above = append(roots, p), append(above, p)
		}
	}
	return roots, nil
}

// leadsTo reports whether all parents of p are directories that the walk enters. It reads their rules.
func (w *walk) leadsTo(ctx context.Context, p string) (bool, error) {
	if p == "" {
		return true, nil
	}
	dir := up(p)
	if is, known := w.decided[dir]; known {
		return is, nil
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	is, err := w.leadsTo(ctx, dir)
	if err == nil && is && dir != "" {
		is, err = w.enters(ctx, dir)
	}
	if err == nil && is {
		is, err = w.carry(dir)
	}
	w.decided[dir] = is
	return is, err
}

// carry copies the rules of a directory, if it exists.
func (w *walk) carry(dir string) (bool, error) {
	f, err := w.open(dir)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return true, w.rules.carry(f, dir)
}

// open opens a directory of the work tree.
func (w *walk) open(dir string) (*os.File, error) {
	w.calls++
	return dirfd.OpenFile(w.tree, dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// hold accounts for n more bytes of names and paths in memory; n is negative when they are freed.
func (w *walk) hold(n int) error {
	if w.held += n; w.held > limit.TreePaths {
		return fault.New(fault.TooLarge, "the paths of the work tree exceed %d bytes", limit.TreePaths).
			WithHint(haveIgnored, "build")
	}
	return nil
}

// gone reports whether an error means that a path does not exist.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// enters reports whether the walk enters a directory, regardless of its parents.
func (w *walk) enters(ctx context.Context, dir string) (bool, error) {
	f, err := w.open(dir)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if w.keptSubmodule(dir) {
		return false, nil
	}
	if w.dirs[dir] {
		return true, nil
	}
	if err := w.rules.carry(f, dir); err != nil {
		return false, err
	}
	out, err := w.rules.ignored(ctx, []string{dir + "/"})
	if err != nil || out[0] {
		return false, err
	}
	nested, err := w.nested(f, dir)
	return !nested, err
}

// nested reports whether a directory is a repository, or claims to be one, and is not in the base. It then adds
// the directory to the skipped paths.
func (w *walk) nested(f *os.File, dir string) (bool, error) {
	if w.dirs[dir] || dir == "" {
		return false, nil
	}
	w.calls++
	if _, err := dirfd.Lstat(int(f.Fd()), ".git"); gone(err) {
		return false, nil
	} else if err != nil {
		return false, fault.Wrap(err, "lstat %q", clip(join(dir, ".git")))
	}
	return true, w.skip(dir, "it is a nested repository")
}

// keptSubmodule reports whether the base has a submodule at p that stays as it is.
func (w *walk) keptSubmodule(p string) bool {
	return w.base[p].mode == ModeSubmodule && !w.plain[p]
}

// enter walks one directory, unless it is a repository.
func (w *walk) enter(ctx context.Context, dir string) error {
	f, err := w.open(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if nested, err := w.nested(f, dir); err != nil || nested {
		return err
	}
	if err := w.rules.carry(f, dir); err != nil {
		return err
	}
	held := w.held
	names, err := w.names(ctx, f)
	if err != nil {
		return err
	}
	// The directory is closed before its children are walked, so that few are open at once.
	mine := w.held - held
	below, err := w.entries(ctx, f, dir, names)
	f.Close()
	for i := 0; err == nil && i < len(below); i++ {
		err = w.enter(ctx, join(dir, below[i]))
	}
	w.held -= mine
	return err
}

// names returns the names in a directory, sorted.
func (w *walk) names(ctx context.Context, f *os.File) (names []string, _ error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		some, err := f.Readdirnames(4096)
		names = append(names, some...)
		for _, n := range some {
			if err := w.hold(len(n)); err != nil {
				return nil, err
			}
		}
		if w.met += len(some); w.met > w.limits.Objects {
			return nil, fault.New(fault.TooLarge, "the work tree has more than %d files", w.limits.Objects).
				WithHint(haveIgnored, "build")
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// join returns the path of a name in a directory; both are clean.
func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// met is an entry that the walk has reached.
type met struct {
	path string
	st   unix.Stat_t
}

// entries compares the entries of a directory, in chunks, and returns the names of the directories to walk.
func (w *walk) entries(ctx context.Context, f *os.File, dir string, names []string) (below []string, err error) {
	for some := range slices.Chunk(names, 1024) {
		list, err := w.look(ctx, f, dir, some)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			switch m := &list[i]; m.st.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				if w.keptSubmodule(m.path) {
					w.seen[m.path] = true
					continue
				}
				below = append(below, path.Base(m.path))
			case unix.S_IFREG:
				err = w.file(ctx, f, m.path, &m.st)
			case unix.S_IFLNK:
				err = w.link(f, m.path)
			default:
				err = w.skip(m.path, "not a file, directory or symbolic link")
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return below, nil
}

// look returns the entries that a commit can have and that no rule ignores.
func (w *walk) look(ctx context.Context, f *os.File, dir string, names []string) ([]met, error) {
	var list []met
	var strange []string // paths that the base does not have, in the form for rules
	var at []int         // their indices in list
	for _, n := range names {
		p := join(dir, n)
		why := badName(n)
		if len(p) > limit.TreePath {
			why = "too long"
		}
		if why != "" {
			if p == ".git" {
				continue
			}
			if err := w.skip(p, why); err != nil {
				return nil, err
			}
			continue
		}
		w.calls++
		st, err := dirfd.Lstat(int(f.Fd()), n)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fault.Wrap(err, "lstat %q", clip(p))
		}
		list = append(list, met{p, st})
		if _, has := w.base[p]; !has && !w.dirs[p] {
			if dirfd.IsDir(&st) {
				// Git caches the rules of the last directory that it was asked about, so they must be copied
				// before.
				if _, err := w.carry(p); err != nil && !errors.Is(err, fs.ErrPermission) {
					return nil, err
				}
				p += "/"
			}
			strange, at = append(strange, p), append(at, len(list)-1)
		}
	}
	out, err := w.rules.ignored(ctx, strange)
	if err != nil {
		return nil, err
	}
	for i, hidden := range out {
		if hidden {
			list[at[i]].path = ""
		}
	}
	return slices.DeleteFunc(list, func(m met) bool { return m.path == "" }), nil
}

func (w *walk) skip(p, why string) error {
	w.skipped = append(w.skipped, Skipped{p, why})
	return w.hold(len(p))
}

// gone adds the paths of the base below roots that the work tree does not have. Submodules are not deleted: they
// need not be checked out.
func (w *walk) gone(ctx context.Context, roots []string) error {
	lost := func(p string) {
		if !w.seen[p] && !w.keptSubmodule(p) {
			w.seen[p] = true
			w.found = append(w.found, found{path: p})
		}
	}
	var sorted []string
	for _, root := range roots {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, has := w.base[root]; has {
			lost(root)
		}
		if root != "" && !w.dirs[root] {
			continue
		}
		if sorted == nil {
			sorted = slices.Sorted(maps.Keys(w.base))
		}
		prefix := root + "/"
		if root == "" {
			prefix = ""
		}
		at, _ := slices.BinarySearch(sorted, prefix)
		for ; at < len(sorted) && strings.HasPrefix(sorted[at], prefix); at++ {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			lost(sorted[at])
		}
	}
	return nil
}
