// Package dirfd accesses files below an open directory to which hostile programs write: it opens, lists and examines
// them, and no link or rename leads it elsewhere.
//
// Open resolves a path of any depth in one system call, openat2(2). os.Root opens every directory in the path, so
// that the cost of a walk grows with the square of its depth. Functions that take a descriptor are for walks, and
// return the bare errno; those that take an *os.File return a *fs.PathError.
//
// Any package may import it; it imports no package of Coppice.
package dirfd

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Flags of openat2(2) that determine how Open resolves a path. They can be combined.
const (
	// Beneath resolves below the directory, and follows no link.
	Beneath = unix.RESOLVE_BENEATH | NoLinks
	// InRoot uses the directory as the root for links, absolute paths and "..". It follows no magic link.
	InRoot = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	// NoLinks follows no link of any kind: ELOOP.
	NoLinks = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	// OneMount enters no other mount: EXDEV.
	OneMount = unix.RESOLVE_NO_XDEV
)

// DirFlags are the flags to open a directory for listing. They neither follow a link nor block.
const DirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// tries is the maximum number of retries of a resolution that renames disturb.
const tries = 1000

// Open opens the file at p, which must be shorter than PATH_MAX, relative to dir. The caller closes it. EAGAIN means
// that renames on the machine disturbed the resolution of ".." a thousand times, or, with O_NONBLOCK, that another
// process holds a lease on the file.
func Open(dir int, p string, flags int, resolve uint64) (int, error) {
	return open(dir, p, &unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve})
}

func open(dir int, p string, how *unix.OpenHow) (int, error) {
	for i := 0; ; i++ {
		fd, err := unix.Openat2(dir, p, how)
		if err != unix.EINTR && (err != unix.EAGAIN || i >= tries) {
			return fd, err
		}
	}
}

// OpenLong is Open for a path of any length, which it resolves in pieces shorter than PATH_MAX. With InRoot, links
// are followed only in the first piece, and ".." does not lead out of a piece.
func OpenLong(dir int, p string, flags int, resolve uint64) (int, error) {
	for at := dir; ; {
		head, tail := cut(p)
		how := flags
		if tail != "" {
			how = unix.O_PATH | unix.O_DIRECTORY
		}
		fd, err := Open(at, head, how, resolve)
		if at != dir {
			unix.Close(at)
		}
		if err != nil || tail == "" {
			return fd, err
		}
		at, p = fd, tail
		if resolve&unix.RESOLVE_IN_ROOT != 0 {
			resolve = resolve&^unix.RESOLVE_IN_ROOT | Beneath
		}
	}
}

// cut splits a path after the last name with which the head is shorter than PATH_MAX, or after the first name.
func cut(p string) (head, tail string) {
	if len(p) < unix.PathMax {
		return p, ""
	}
	i := strings.LastIndexByte(p[:unix.PathMax-1], '/')
	if i < 0 {
		if i = strings.IndexByte(p, '/'); i < 0 {
			return p, ""
		}
	}
	return p[:i+1], strings.TrimLeft(p[i:], "/")
}

// OpenDir opens the directory name in dir to list it. The caller closes it.
func OpenDir(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, DirFlags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// OpenAbove opens the parent of directory dir, which must have the device dev and the inode ino: ESTALE means that
// dir was moved. With it, a walk need not keep all directories on its path open.
func OpenAbove(dir int, dev, ino uint64) (int, error) {
	fd, err := OpenDir(dir, "..")
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Dev != dev || st.Ino != ino) {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// OpenRegular opens the regular file name in dir for reading, and returns its state. It returns ELOOP for a link, and
// EINVAL for any other type. It does not block on a FIFO, and preserves the access time if the caller may. EAGAIN
// means that another process holds a lease on the file. The caller closes fd.
func OpenRegular(dir int, name string) (fd int, st unix.Stat_t, err error) {
	flags := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOATIME
	for {
		fd, err = unix.Openat(dir, name, flags, 0)
		if err == unix.EPERM && flags&unix.O_NOATIME != 0 {
			flags &^= unix.O_NOATIME // the file belongs to another user
			continue
		}
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err == nil && !IsRegular(&st) {
		err = unix.EINVAL
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}
