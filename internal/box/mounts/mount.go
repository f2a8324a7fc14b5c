//go:build linux && (amd64 || arm64)

package mounts

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// PlainAttr are the attributes of mounts without programs and devices.
const PlainAttr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// New returns a detached mount of a new file system. An option is "name" or "name=value".
func New(kind string, attr int, options ...string) (int, error) {
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

// Clone returns a detached mount of a file or directory below dir, or of dir itself if name is "", with the attributes
// set.
func Clone(dir int, name string, set uint64) (int, error) {
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

// OpenPoint opens a file or directory below dir as a mount point. A link in the path, including the last component, is
// ELOOP.
func OpenPoint(dir int, name string, flags int) (int, error) {
	return dirfd.Open(dir, name, flags|unix.O_PATH|unix.O_NOFOLLOW, dirfd.Beneath)
}

// AttachOver attaches a detached mount over the file or directory to which at refers.
func AttachOver(mount, at int) error {
	return unix.MoveMount(mount, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Attach attaches a detached mount to a directory below dir, and creates the last component if it is missing. The
// directory belongs to the sandbox's root, so Attach refuses a link, which would redirect the mount, and anything else
// that is not a directory.
func Attach(mount, dir int, name string) error {
	at, err := OpenPoint(dir, name, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return fault.Wrap(err, "create mount point %s", name)
		}
		at, err = OpenPoint(dir, name, unix.O_DIRECTORY)
	}
	if err != nil {
		return PointFault(name, err)
	}
	defer unix.Close(at)
	return fault.Wrap(AttachOver(mount, at), "mount at %s", name)
}

// PointFault returns the error for a mount point below the sandbox's root that cannot be opened.
func PointFault(name string, err error) error {
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return fault.New(fault.Invalid, "mount point /%s of the sandbox is not a directory", name).Because(err).
			WithHint("make it a directory in the image, or rewind to a snapshot where it is one: coppice log")
	}
	return fault.Wrap(err, "open mount point /%s", name)
}

// NewAt mounts a new file system at a directory below dir, as Attach does, and returns a descriptor of its root, which
// the caller closes.
func NewAt(dir int, name, kind string, attr int, options ...string) (int, error) {
	fd, err := New(kind, attr, options...)
	if err != nil {
		return -1, fault.Wrap(err, "mount %s at %s", kind, name)
	}
	if err := Attach(fd, dir, name); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
