//go:build linux && (amd64 || arm64)

package mounts

import (
	"errors"

	"golang.org/x/sys/unix"
)

// HideFile mounts /dev/null, which must exist, over a file below proc, a procfs. A file that does not exist is not an
// error.
func HideFile(proc int, name string) error {
	at, err := OpenPoint(proc, name, 0)
	if errors.Is(err, unix.ENOENT) {
		// The file is opened before the mount is created, since closing a mount that was never attached is slow (it
		// waits for RCU).
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	null, err := Clone(unix.AT_FDCWD, "/dev/null", unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	return AttachOver(null, at)
}

// HideDir mounts an empty directory over a directory below dir. A directory that does not exist is not an error.
func HideDir(dir int, name string) error {
	at, err := OpenPoint(dir, name, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	empty, err := New("tmpfs", PlainAttr|unix.MOUNT_ATTR_RDONLY, "size=0", "nr_inodes=1")
	if err != nil {
		return err
	}
	defer unix.Close(empty)
	return AttachOver(empty, at)
}

// MakeReadOnly mounts a file or directory below dir over itself, read-only. One that does not exist is not an error.
func MakeReadOnly(dir int, name string) error {
	at, err := OpenPoint(dir, name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	same, err := Clone(at, "", unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	defer unix.Close(same)
	return AttachOver(same, at)
}
