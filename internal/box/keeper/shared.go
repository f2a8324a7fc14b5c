//go:build linux

package keeper

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// openShared opens the directories of the host that are mounted inside, as detached read-only mounts with ids shifted
// like those of the root. Init cannot open them: it has no permissions on the host. No symbolic link in a path is
// followed, because its target may have changed since it was checked. The caller closes the result.
func openShared(dirs []string, facts plan.Facts, init *child) (fds rootspec.Descriptors, err error) {
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Propagation: unix.MS_PRIVATE,
	}
	if facts.Shift != 0 && len(dirs) > 0 {
		ns, err := os.Open("/proc/" + strconv.Itoa(init.Pid) + "/ns/user")
		if err != nil {
			return nil, fault.Wrap(err, "open init's user namespace")
		}
		defer ns.Close()
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(ns.Fd())
	}
	for _, dir := range dirs {
		fd, err := openSharedDir(dir, attr)
		if err != nil {
			fds.Close()
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func openSharedDir(dir string, attr unix.MountAttr) (int, error) {
	at, err := dirfd.Open(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, dirfd.NoLinks)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, fault.New(fault.NotFound, "%s, which has the objects of the sandbox's repository, is missing", dir).
			WithHint("put the repository back; the sandbox's own changes are in its history")
	}
	if err != nil {
		return -1, fault.Wrap(err, "open %s, which has objects of the sandbox's repository", dir)
	}
	defer unix.Close(at)
	fd, err := unix.OpenTree(at, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fault.Wrap(err, "copy the mount of %s", dir)
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "restrict %s", dir)
	}
	return fd, nil
}
