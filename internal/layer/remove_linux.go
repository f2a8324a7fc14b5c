package layer

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// removeAt deletes dir/name and everything below it, with any mode and at any depth, without following links. It
// stops at the first error.
func removeAt(ctx context.Context, fsys vfs.FS, dir int, name string) error {
	st, err := dirfd.Lstat(dir, name)
	if err != nil {
		return err
	}
	if !dirfd.IsDir(&st) {
		return fsys.Unlink(dir, name)
	}
	r := remover{fs: fsys}
	fd, err := r.open(dir, name)
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
	r  dirfd.Reader
}

// empty removes the content of the directory and returns its descriptor, reopened if the tree is deep.
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
		child, err := r.open(fd, name)
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
			back, e := dirfd.OpenAbove(child, st.Dev, st.Ino)
			fd, err = back, errors.Join(err, e)
		}
		if child >= 0 {
			unix.Close(child)
		}
		if err != nil {
			return fd, err
		}
		if err := r.allowed(fd, func() error { return r.fs.Rmdir(fd, name) }); err != nil {
			return fd, err
		}
	}
	return fd, nil
}

// files unlinks everything that is not a directory, and lists the directories.
func (r *remover) files(ctx context.Context, fd int) (dirs []string, err error) {
	if err := r.r.Start(fd); err != nil {
		return nil, err
	}
	for {
		name, typ, ok, err := r.r.Next()
		if err != nil || !ok {
			return dirs, err
		}
		if typ == unix.DT_UNKNOWN {
			var st unix.Stat_t
			if err := r.r.Lstat(name, &st); err != nil {
				return dirs, err
			}
			if dirfd.IsDir(&st) {
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
		if err := r.allowed(fd, func() error { return r.fs.Unlink(fd, string(name)) }); err != nil {
			return dirs, err
		}
	}
}

// open opens a directory to empty it. A process without capabilities first gets access to its own directory.
func (r *remover) open(dir int, name string) (int, error) {
	fd, err := dirfd.OpenDir(dir, name)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	at, e := dirfd.Open(dir, name, unix.O_PATH|unix.O_DIRECTORY, dirfd.Beneath) // ChmodAt would follow a link
	if e != nil {
		return fd, err
	}
	defer unix.Close(at)
	if r.fs.ChmodAt(unix.AT_FDCWD, vfs.FDPath(at), 0o700) != nil {
		return fd, err
	}
	return dirfd.OpenDir(dir, name)
}

// allowed calls do, which removes a name from the open directory fd. A process without capabilities first gets access
// to its own directory.
func (r *remover) allowed(fd int, do func() error) error {
	err := do()
	if errors.Is(err, unix.EACCES) && r.fs.Chmod(fd, 0o700) == nil {
		err = do()
	}
	return err
}
