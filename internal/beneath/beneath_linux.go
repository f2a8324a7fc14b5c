// Package beneath opens and makes files by long paths below an untrusted directory. Each call
// is one system call, however deep the path, and follows no link of any kind: os.Root opens
// every directory on the way, which makes a walk cost the square of its depth. It imports none
// of ours.
package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// how are the rules of each resolution, openat2(2): never above the directory, and never
// through a symbolic or magic link.
const how = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Open opens the file at p below top. p is shorter than PATH_MAX; "" is top itself. A link
// on the way or at the end is ELOOP. Open never blocks, not even on a FIFO.
func Open(top *os.File, p string, flags int, mode fs.FileMode) (*os.File, error) {
	if p == "" {
		p = "."
	}
	want := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC | unix.O_NONBLOCK, Mode: uint64(mode.Perm()), Resolve: how}
	if flags&unix.O_PATH != 0 {
		want.Flags &^= unix.O_NONBLOCK // O_PATH allows few other flags
	}
	for {
		fd, err := unix.Openat2(int(top.Fd()), p, &want)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue // a name moved meanwhile
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: p, Err: err}
		}
		return os.NewFile(uintptr(fd), p), nil
	}
}

// MkdirAll makes the directory at p below top, and those above it that are missing.
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

// At calls fn with the parent directory of p, below top, and the last name of p.
func At(top *os.File, p string, fn func(dir int, name string) error) error {
	dir, err := Open(top, up(p), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := fn(int(dir.Fd()), path.Base(p)); err != nil {
		return &fs.PathError{Op: "make", Path: p, Err: err}
	}
	return nil
}

func up(p string) string {
	if dir := path.Dir(p); dir != "." {
		return dir
	}
	return ""
}

// Lstat returns the state of an entry in a directory, and follows no link.
func Lstat(dir *os.File, name string) (st unix.Stat_t, err error) {
	err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		err = &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return st, err
}

// Readlink returns the target of a link in a directory; EINVAL if it is not a link.
func Readlink(dir *os.File, name string) (string, error) {
	b := make([]byte, unix.PathMax+1)
	n, err := unix.Readlinkat(int(dir.Fd()), name, b)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return string(b[:n]), nil
}
