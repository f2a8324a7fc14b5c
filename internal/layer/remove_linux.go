package layer

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/vfs"
)

// removeAt deletes dir/name and everything beneath it, whatever its modes and
// depth, without following links. The first error ends it.
func removeAt(ctx context.Context, fsys vfs.FS, dir int, name string) error {
	var st unix.Stat_t
	if err := lstatAt(dir, name, &st); err != nil {
		return err
	}
	if !isDir(&st) {
		return fsys.Unlink(dir, name)
	}
	r := remover{fs: fsys}
	fd, err := openDirAt(dir, name)
	if err != nil {
		return err
	}
	fd, err = r.empty(ctx, fd, 0)
	if fd >= 0 {
		unix.Close(fd)
	}
	if err != nil {
		return err
	}
	return fsys.Rmdir(dir, name)
}

type remover struct {
	fs vfs.FS
	r  dirReader
}

// empty removes what is in the directory and gives its descriptor back, which is
// another one when the tree is deep.
func (r *remover) empty(ctx context.Context, fd, depth int) (int, error) {
	if err := ctx.Err(); err != nil {
		return fd, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fd, err
	}
	dirs, err := r.files(ctx, fd)
	if err != nil {
		return fd, err
	}
	for _, name := range dirs {
		child, err := openDirAt(fd, name)
		if err != nil {
			return fd, err
		}
		deep := depth >= maxHeld
		if deep {
			unix.Close(fd)
			fd = -1
		}
		child, err = r.empty(ctx, child, depth+1)
		if deep && child >= 0 {
			back, e := comeBack(child, st.Ino, st.Dev)
			fd, err = back, errors.Join(err, e)
		}
		if child >= 0 {
			unix.Close(child)
		}
		if err != nil {
			return fd, err
		}
		if err := r.fs.Rmdir(fd, name); err != nil {
			return fd, err
		}
	}
	return fd, nil
}

// files unlinks everything that is not a directory, and lists the directories.
func (r *remover) files(ctx context.Context, fd int) (dirs []string, err error) {
	if err := r.r.start(fd); err != nil {
		return nil, err
	}
	for {
		name, typ, ok, err := r.r.next()
		if err != nil || !ok {
			return dirs, err
		}
		if typ == unix.DT_UNKNOWN {
			var st unix.Stat_t
			if err := r.r.stat(name, &st); err != nil {
				return dirs, err
			}
			if isDir(&st) {
				typ = unix.DT_DIR
			}
		}
		if err := ctx.Err(); err != nil {
			return dirs, err
		}
		if typ == unix.DT_DIR {
			dirs = append(dirs, string(name))
			continue
		}
		if err := r.fs.Unlink(fd, string(name)); err != nil {
			return dirs, err
		}
	}
}
