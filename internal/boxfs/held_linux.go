package boxfs

import (
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The kernel keeps what is a mount point in one mount namespace from being renamed and
// removed by those in it alone; for us, who are in another, it takes the mount away
// instead. So a Root asks itself. Processes inside cannot change the answer: what is
// held stays what and where it is.

// holds notes the directories that lead to mounts inside.
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

// findDecoys remembers the file system of decoys, which nothing else lies on.
func (r *Root) findDecoys(at []string) error {
	r.decoys = map[uint64]bool{}
	for _, p := range at {
		var st unix.Stat_t
		fd, err := dirfd.Open(r.fd, path.Clean("/" + p)[1:], unix.O_PATH|unix.O_NOFOLLOW, dirfd.InRoot|dirfd.NoLinks)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // none is mounted there
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

// isMountRoot reports whether something is mounted right at what fd is open at.
func isMountRoot(fd int) (bool, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_TYPE, &st)
		if err != unix.EINTR {
			return st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0, err
		}
	}
}

// inode tells directories apart.
type inode struct{ dev, ino uint64 }

// movable refuses a name that something is mounted at, or that leads there.
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
