//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// plainAttr are the attributes of every mount that holds no programs.
const plainAttr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// newMount makes a detached mount of a new file system. An option is "name" or "name=value".
func newMount(kind string, attr int, options ...string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open file system %s: %w", kind, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if name, value, ok := strings.Cut(o, "="); ok {
			err = unix.FsconfigSetString(fs, name, value)
		} else {
			err = unix.FsconfigSetFlag(fs, name)
		}
		if err != nil {
			return -1, fmt.Errorf("set %s of file system %s: %w", o, kind, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create file system %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return -1, fmt.Errorf("mount file system %s: %w", kind, err)
	}
	return fd, nil
}

// cloneMount makes a detached mount of a file or directory, or of dir itself where name
// is "", with the attributes set.
func cloneMount(dir int, name string, set uint64) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, name, flags)
	if err != nil {
		return -1, fmt.Errorf("clone the mount: %w", err)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("restrict the mount: %w", err)
	}
	return fd, nil
}

// openPoint opens a file or directory beneath dir for a mount to be attached to. A link,
// as the name or on the way to it, is ELOOP.
func openPoint(dir int, name string, flags int) (int, error) {
	return dirfd.Open(dir, name, flags|unix.O_PATH|unix.O_NOFOLLOW, dirfd.Beneath)
}

// attachOver attaches a detached mount over the file or directory that at is open on.
func attachOver(mount, at int) error {
	return unix.MoveMount(mount, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// attach attaches a detached mount to a directory beneath dir, and makes the last name if it
// is missing. The directory belongs to the sandbox's root, so attach refuses a link, which
// would redirect the mount, and anything else that is not a directory.
func attach(mount, dir int, name string) error {
	at, err := openPoint(dir, name, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return fault.Wrap(err, "make mount point %s", name)
		}
		at, err = openPoint(dir, name, unix.O_DIRECTORY)
	}
	if err != nil {
		return pointFault(name, err)
	}
	defer unix.Close(at)
	return fault.Wrap(attachOver(mount, at), "mount at %s", name)
}

// pointFault returns the error of a mount point beneath the sandbox's root that cannot be opened.
func pointFault(name string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return fault.New(fault.Invalid, "mount point /%s of the sandbox is not a directory", name).Because(err).
			WithHint("make it a directory in the image, or go back to a snapshot where it is one: coppice log")
	}
	return fault.Wrap(err, "open mount point /%s", name)
}

// mountAt mounts a new file system at a directory beneath dir, as attach does, and returns
// a descriptor of its root, which the caller closes.
func mountAt(dir int, name, kind string, attr int, options ...string) (int, error) {
	fd, err := newMount(kind, attr, options...)
	if err != nil {
		return -1, fault.Wrap(err, "mount %s at %s", kind, name)
	}
	if err := attach(fd, dir, name); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openBeneath opens an existing file beneath dir, to read or to write it.
func openBeneath(dir int, name string, flags int) (int, error) {
	return dirfd.Open(dir, name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, dirfd.Beneath)
}

// writeBeneath writes to an existing file beneath dir.
func writeBeneath(dir int, name, text string) error {
	fd, err := openBeneath(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(text))
	return err
}
