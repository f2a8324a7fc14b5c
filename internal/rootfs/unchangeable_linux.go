package rootfs

import (
	"context"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Unchangeable describes the files below a directory of the host that the caller may change, and a command in a
// sandbox on the host may not: overlayfs copies a file up with its owner and group, and fails with EOVERFLOW if one of
// them is not mapped. The user namespace of an unprivileged user maps only their own IDs.
type Unchangeable struct {
	First   string // path of the first one
	Count   int
	Grouped int  // number of files that the caller owns, whose group alone is not mapped
	More    bool // entries beyond limit.UnchangeableEntries were not read
}

// FindUnchangeable searches dir and the entries below it, the nearest first. It follows no links except in dir, omits
// store and the directories that every sandbox replaces, and skips what it cannot read. It reads nothing if all IDs
// are mapped, as for real root.
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

// all reports whether a map contains every ID.
func (r idRange) all() bool { return r.first == 0 && r.count == 1<<32-1 }

// findUnchangeable is FindUnchangeable without the paths of omit, for at most most entries below dir. mapped reports
// whether the owner and the group of a file are mapped.
func findUnchangeable(
	ctx context.Context, dir string, omit []string, most int, mapped func(*unix.Stat_t) (uid, gid bool),
) (u Unchangeable, err error) {
	top, err := dirfd.OpenDir(unix.AT_FDCWD, dir)
	if err != nil {
		return u, fault.Wrap(err, "look for files that a sandbox cannot change")
	}
	defer unix.Close(top)
	for dirs := []string{"."}; len(dirs) > 0; dirs = dirs[1:] {
		at := filepath.Join(dir, dirs[0])
		if err := ctx.Err(); err != nil {
			return u, err
		}
		if slices.ContainsFunc(omit, func(p string) bool { return rootspec.Within(at, p) }) {
			continue
		}
		fd, err := dirfd.OpenLong(top, dirs[0], dirfd.DirFlags, dirfd.Beneath)
		if err != nil {
			continue // not readable, or replaced meanwhile
		}
		if at == dir {
			u.look(fd, ".", at, mapped)
		}
		names, more, err := namesIn(fd, most)
		if err == nil {
			most -= len(names)
			u.More = u.More || more
			for _, name := range names {
				if u.look(fd, name, filepath.Join(at, name), mapped) {
					dirs = append(dirs, filepath.Join(dirs[0], name))
				}
			}
		}
		unix.Close(fd)
	}
	return u, nil
}

// look counts the entry name of the directory fd if it is unchangeable, and reports whether it is a directory. path is
// its path on the host.
func (u *Unchangeable) look(
	fd int, name, path string, mapped func(*unix.Stat_t) (uid, gid bool),
) (dir bool) {
	st, err := dirfd.Lstat(fd, name)
	if err != nil {
		return false
	}
	dir = dirfd.IsDir(&st)
	uid, gid := mapped(&st)
	if uid && gid || slices.Contains(scratchDirs, path) {
		return dir
	}
	if !uid && (dirfd.IsLink(&st) || unix.Faccessat(fd, name, unix.W_OK, unix.AT_EACCESS) != nil) {
		return dir // the caller cannot change it on the host either
	}
	if u.Count++; u.Count == 1 {
		u.First = path
	}
	if uid {
		u.Grouped++
	}
	return dir
}

// namesIn lists at most most names in a directory, sorted, and reports whether there are more.
func namesIn(fd, most int) (names []string, more bool, err error) {
	r := dirfd.NewReader()
	defer r.Close()
	r.StartNew(fd)
	for {
		name, _, ok, err := r.Next()
		if err != nil || !ok {
			slices.Sort(names)
			return names, false, err
		}
		if len(names) == most {
			slices.Sort(names)
			return names, true, nil
		}
		names = append(names, string(name))
	}
}
