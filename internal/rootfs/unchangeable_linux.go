package rootfs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Unchangeable is what the caller may change below a directory of the host, and a command in a sandbox
// on the host may not: overlayfs copies a file up with its owner and group, and fails with EOVERFLOW
// if one of them is not mapped. The user namespace of an ordinary user maps their own ids alone.
type Unchangeable struct {
	First   string // the path of the first one
	Count   int
	Grouped int  // how many of them the caller owns, so that only their group is not mapped
	More    bool // limit.UnchangeableEntries were read, and there are more
}

// FindUnchangeable looks for such files: dir, then what is below it, the nearest first. It follows no
// links except in dir, omits store and what every sandbox has of its own, and skips what it cannot
// read. It reads nothing if all ids are mapped, as for real root.
func FindUnchangeable(ctx context.Context, dir, store string) (Unchangeable, error) {
	if slices.ContainsFunc(idMaps()["gid"], idRange.all) && slices.ContainsFunc(idMaps()["uid"], idRange.all) {
		return Unchangeable{}, nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Unchangeable{}, fault.Wrap(err, "look for files that a sandbox cannot change")
	}
	omit := append([]string{store}, rootspec.Reserved...)
	return findUnchangeable(ctx, dir, omit, limit.UnchangeableEntries, func(st *unix.Stat_t) (uid, gid bool) {
		return mayGive("uid", st.Uid), mayGive("gid", st.Gid)
	})
}

// all reports whether a map contains every id.
func (r idRange) all() bool { return r.first == 0 && r.count == 1<<32-1 }

// findUnchangeable is FindUnchangeable without some paths, for at most so many entries below dir. mapped
// reports whether the owner and the group of a file are mapped.
func findUnchangeable(
	ctx context.Context, dir string, omit []string, most int, mapped func(*unix.Stat_t) (uid, gid bool),
) (u Unchangeable, err error) {
	for dirs := []string{dir}; len(dirs) > 0; dirs = dirs[1:] {
		at := dirs[0]
		if err := ctx.Err(); err != nil {
			return u, err
		}
		if slices.ContainsFunc(omit, func(p string) bool { return rootspec.Within(at, p) }) {
			continue
		}
		if at == dir {
			u.look(at, mapped)
		}
		names, more, err := namesIn(at, most)
		if err != nil {
			continue
		}
		most -= len(names)
		u.More = u.More || more
		for _, name := range names {
			if p := filepath.Join(at, name); u.look(p, mapped) {
				dirs = append(dirs, p)
			}
		}
	}
	return u, nil
}

// look counts a path if it is unchangeable, and reports whether it is a directory.
func (u *Unchangeable) look(path string, mapped func(*unix.Stat_t) (uid, gid bool)) (dir bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false
	}
	kind := st.Mode & unix.S_IFMT
	dir = kind == unix.S_IFDIR
	uid, gid := mapped(&st)
	if uid && gid || slices.Contains(scratchDirs, path) {
		return dir
	}
	if !uid && (kind == unix.S_IFLNK || unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) != nil) {
		return dir // nor can the caller change it on the host
	}
	if u.Count++; u.Count == 1 {
		u.First = path
	}
	if uid {
		u.Grouped++
	}
	return dir
}

// namesIn lists at most so many names in a directory, sorted, and reports whether there are more.
func namesIn(dir string, most int) (names []string, more bool, err error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	names, err = f.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	slices.Sort(names)
	if len(names) > most {
		return names[:most], true, nil
	}
	return names, false, nil
}
