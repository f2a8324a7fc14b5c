package boxfs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The kernel protects a mount point from being renamed and removed only by processes in the mount namespace of the
// mount. For this process, which is in another one, it removes the mount instead. So a Root checks that itself.
// Processes inside cannot invalidate the check: they can neither move nor replace a mount point.

// holds records the parent directories of mounts inside.
func (r *Root) holds(fixed []string) error {
	r.held = map[inode]bool{}
	for _, p := range fixed {
		for d := path.Dir(path.Clean("/" + p)); d != "/"; d = path.Dir(d) {
			var st unix.Stat_t
			fd, err := dirfd.Open(r.fd, d[1:], unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, dirfd.InRoot|dirfd.NoLinks)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				continue // nothing is mounted there
			}
			if err != nil {
				return err
			}
			err = unix.Fstat(fd, &st)
			unix.Close(fd)
			if err != nil {
				return err
			}
			r.held[inode{st.Dev, st.Ino}] = true
		}
	}
	return nil
}

// findDecoys records the device of the decoys' file system, which has no other files.
func (r *Root) findDecoys(at []string) error {
	r.decoys = map[uint64]bool{}
	for _, p := range at {
		var st unix.Stat_t
		fd, err := dirfd.Open(r.fd, path.Clean("/" + p)[1:], unix.O_PATH|unix.O_NOFOLLOW, dirfd.InRoot|dirfd.NoLinks)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // no decoy is mounted there
		}
		if err != nil {
			return err
		}
		root, err := isMountRoot(fd)
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		unix.Close(fd)
		if err != nil {
			return err
		}
		if root && st.Dev != r.dev {
			r.decoys[st.Dev] = true
		}
	}
	return nil
}

// isMountRoot reports whether fd refers to the root of a mount.
func isMountRoot(fd int) (bool, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
		if err != unix.EINTR {
			return st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0, err
		}
	}
}

// inode identifies a directory.
type inode struct{ dev, ino uint64 }

// movable fails for a mount point and for a parent directory of one.
func (r *Root) movable(dir int, name string) error {
	var st unix.Statx_t
	for {
		err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE|unix.STATX_INO, &st)
		if err == unix.EINTR {
			continue
		}
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		break
	}
	at := inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}
	if st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 ||
		st.Mode&unix.S_IFMT == unix.S_IFDIR && r.held[at] {
		return fault.New(fault.Denied, "cannot rename, replace or remove %q: it is a mount point, or contains one",
			name).
			WithHint("see which paths the policy mounts or protects: coppice policy show NAME")
	}
	return nil
}
