package dirfd

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// OpenFile opens the file at p, resolved with Beneath from top. p must be shorter than PATH_MAX; "" means top
// itself. It never blocks, not even on a FIFO. The caller closes the result.
func OpenFile(top *os.File, p string, flags int, mode fs.FileMode) (*os.File, error) {
	if p == "" {
		p = "."
	}
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Mode: uint64(mode.Perm()), Resolve: Beneath}
	if flags&unix.O_PATH == 0 { // O_PATH allows few other flags
		how.Flags |= unix.O_NONBLOCK
	}
	fd, err := open(int(top.Fd()), p, &how)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: p, Err: err}
	}
	return os.NewFile(uintptr(fd), p), nil
}

// MkdirAll creates the directory at p, resolved with Beneath from top, and its missing parents.
func MkdirAll(top *os.File, p string, mode fs.FileMode) error {
	if p == "" || p == "." {
		return nil
	}
	err := mkdir(top, p, mode)
	if errors.Is(err, unix.ENOENT) {
		if err = MkdirAll(top, path.Dir(p), mode); err == nil {
			err = mkdir(top, p, mode)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		// It may be any type of file: later calls below it fail unless it is a directory.
		err = nil
	}
	return err
}

func mkdir(top *os.File, p string, mode fs.FileMode) error {
	return At(top, p, func(dir int, name string) error { return unix.Mkdirat(dir, name, uint32(mode.Perm())) })
}

// At calls fn with the parent directory of p, resolved with Beneath from top, and the last name of p.
func At(top *os.File, p string, fn func(dir int, name string) error) error {
	dir, err := OpenFile(top, path.Dir(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := fn(int(dir.Fd()), path.Base(p)); err != nil {
		return &fs.PathError{Op: "make", Path: p, Err: err}
	}
	return nil
}
