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

	"github.com/coppice-dev/coppice/internal/fault"
)

// walk compares a hostile work tree with a listing. It opens directories and regular
// files alone, and follows no link: what is below one is not there, as for git. A link
// that is put in a directory's place meanwhile leads to files of the same tree at most.
type walk struct {
	tree   *os.Root
	base   listing
	dirs   map[string]bool // of base
	format Format
	rules  *ignoreRules
	limits Limits
	plain  map[string]bool // submodules of base that are taken as files

	met     int             // entries, of all directories
	seen    map[string]bool // paths of base that are as they were, or in found
	found   []found
	skipped []Skipped
}

// all walks over some paths, or everything, and adds what is gone.
func (w *walk) all(ctx context.Context, paths []string) error {
	roots := w.tops(paths)
	for _, p := range roots {
		is, err := w.leadsTo(ctx, p)
		switch {
		case err != nil || !is:
		case p == "":
			err = w.enter(ctx, "")
		default:
			err = w.entries(ctx, path.Dir(p), []string{path.Base(p)})
		}
		if err != nil {
			return err
		}
	}
	w.gone(roots)
	slices.SortFunc(w.found, func(a, b found) int { return strings.Compare(a.path, b.path) })
	return nil
}

// tops gives paths without those that lie below others; "" is everything.
func (w *walk) tops(paths []string) []string {
	if len(paths) == 0 {
		return []string{""}
	}
	all := set(paths)
	var roots []string
	for _, p := range slices.Sorted(maps.Keys(all)) {
		if why := badPath(p); why != "" {
			w.skip(p, why)
			continue
		}
		below := false
		for at := path.Dir(p); at != "."; at = path.Dir(at) {
			below = below || all[at]
		}
		if !below {
			roots = append(roots, p)
		}
	}
	return roots
}

// leadsTo reports whether the directories above p are directories, and not left out. It
// reads their rules.
func (w *walk) leadsTo(ctx context.Context, p string) (bool, error) {
	at := ""
	for {
		if err := w.rules.carry(w.tree, at); err != nil {
			return false, err
		}
		rest := strings.TrimPrefix(strings.TrimPrefix(p, at), "/")
		name, _, more := strings.Cut(rest, "/")
		if !more {
			return true, nil
		}
		dir := path.Join(at, name)
		info, err := w.tree.Lstat(dir)
		if gone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if enters, err := w.enters(ctx, dir, info); err != nil || !enters {
			return false, err
		}
		at = dir
	}
}

// gone: an error that says that there is nothing.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// enters decides on a directory by itself.
func (w *walk) enters(ctx context.Context, dir string, info fs.FileInfo) (bool, error) {
	if !info.IsDir() || w.keptSubmodule(dir) {
		return false, nil
	}
	if w.dirs[dir] {
		return true, nil
	}
	out, err := w.rules.ignored(ctx, []string{dir + "/"})
	return err == nil && !out[0] && !w.nested(dir), err
}

// nested reports, and tells, that a directory which the base does not have is a
// repository of its own, or says so.
func (w *walk) nested(dir string) bool {
	if _, err := w.tree.Lstat(path.Join(dir, ".git")); err != nil {
		return false
	}
	w.skip(dir, "it is a repository of its own")
	return true
}

// keptSubmodule: a directory at which the base has a commit of another repository, which
// is to stay.
func (w *walk) keptSubmodule(p string) bool {
	return w.base[p].mode == ModeSubmodule && !w.plain[p]
}

// enter walks over one directory that was decided on.
func (w *walk) enter(ctx context.Context, dir string) error {
	if err := w.rules.carry(w.tree, dir); err != nil {
		return err
	}
	f, err := w.tree.OpenFile(orDot(dir), os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var names []string
	for {
		some, err := f.Readdirnames(4096)
		names = append(names, some...)
		if w.met += len(some); w.met > w.limits.Objects {
			return fault.New(fault.Invalid, "the work tree has more than %d files", w.limits.Objects)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	f.Close()
	slices.Sort(names)
	return w.entries(ctx, dir, names)
}

func orDot(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

// entries looks at some entries of a directory, then walks over those that are
// directories.
func (w *walk) entries(ctx context.Context, dir string, names []string) error {
	sub, err := w.tree.OpenRoot(orDot(dir))
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer shut(sub)
	infos := map[string]fs.FileInfo{}
	var strange []string // what the base does not have, as rules read it
	for _, n := range names {
		p := path.Join(dir, n)
		if why := badPath(p); why != "" {
			if p != ".git" {
				w.skip(p, why)
			}
			continue
		}
		info, err := sub.Lstat(n)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		infos[p] = info
		if _, has := w.base[p]; !has && !w.dirs[p] {
			strange = append(strange, p+slash(info))
		}
	}
	out, err := w.rules.ignored(ctx, strange)
	if err != nil {
		return err
	}
	for i, s := range strange {
		if out[i] {
			delete(infos, strings.TrimSuffix(s, "/"))
		}
	}
	return w.each(ctx, sub, infos)
}

func slash(info fs.FileInfo) string {
	if info.IsDir() {
		return "/"
	}
	return ""
}

// each looks at entries that are not left out. Files come first, so that the directory
// is closed before those below are opened.
func (w *walk) each(ctx context.Context, sub *os.Root, infos map[string]fs.FileInfo) error {
	var below []string
	for _, p := range slices.Sorted(maps.Keys(infos)) {
		info := infos[p]
		switch {
		case info.IsDir() && w.keptSubmodule(p):
			w.seen[p] = true
		case info.IsDir():
			below = append(below, p)
		case info.Mode().IsRegular():
			if err := w.file(sub, p, info); err != nil {
				return err
			}
		case info.Mode()&fs.ModeSymlink != 0:
			if err := w.link(sub, p); err != nil {
				return err
			}
		default:
			w.skip(p, "it is no file, directory or link")
		}
	}
	shut(sub)
	for _, p := range below {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !w.dirs[p] && w.nested(p) {
			continue
		}
		if err := w.enter(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// shut closes what was only read. Twice is once.
func shut(root *os.Root) { _ = root.Close() }

func (w *walk) skip(p, why string) { w.skipped = append(w.skipped, Skipped{p, why}) }

// gone adds what the base has below roots and the work tree has not. Submodules stay:
// nobody has to have them checked out.
func (w *walk) gone(roots []string) {
	lost := func(p string) {
		if !w.seen[p] && !w.keptSubmodule(p) {
			w.seen[p] = true
			w.found = append(w.found, found{path: p})
		}
	}
	var sorted []string
	for _, root := range roots {
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
			lost(sorted[at])
		}
	}
}
