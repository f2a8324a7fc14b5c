//go:build linux && (amd64 || arm64)

package oci

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Directories of the conductor's root, besides the system directories of the host and initlink.WorldView.
const (
	worldRuntime = "/runtime" // holds the OCI runtime
	worldState   = "/state"   // the bundle, and what the runtime keeps
	worldRoot    = "/root"    // the root of the container until init leaves it for the sandbox's
	worldGroups  = "/sys/fs/cgroup"
)

// systemPaths are what programs of the host are linked to: libraries, and the cache of their names.
var systemPaths = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
	"/etc/alternatives", "/etc/ld.so.cache"}

// makeWorld makes the sandbox's root of trees (see guest.MakeRoot), and a root of the conductor's own, which it enters.
// The programs are detached mounts or files in memory; it closes them and trees. weak are the protections that are
// weaker than planned. The caller closes root, the sandbox's root as a detached mount with all mounts in it; the keeper
// finds another one at initlink.WorldView.
//
// The runtime starts the container in a root that has only the program of PID 1. Runtimes resolve paths in the root
// that they are given and read its /etc/passwd and /etc/group, which a sandbox may have made links, FIFOs or endless
// files. Init gets the sandbox's root, and enters it, when the container is made.
func makeWorld(g plan.Guest, trees []int, init, runtime int) (weak []plan.Item, root int, err error) {
	world, err := buildWorld(g.Runtime, init, runtime)
	if err != nil {
		return nil, -1, errors.Join(err, closeAll(trees))
	}
	defer unix.Close(world)
	if weak, err = guest.MakeRoot(g, trees); err != nil {
		return nil, -1, err
	}
	if err := enterWorld(world); err != nil {
		return nil, -1, err
	}
	root, err = cloneTree(initlink.WorldView)
	return weak, root, err
}

// buildWorld returns the conductor's root as a detached mount, without the sandbox's. It closes the programs. The
// mounts in it are attached before they are cloned at once: each detached mount is a mount namespace for the kernel,
// and a sandbox has few (limit.Namespaces), from MakeRoot on.
func buildWorld(name string, init, runtime int) (world int, err error) {
	defer unix.Close(init)
	defer unix.Close(runtime)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return -1, fault.Wrap(err, "make the mounts private")
	}
	const scaffold = "/dev" // a directory of every host, covered until the world is built
	if err := unix.Mount("tmpfs", scaffold, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return -1, fault.Wrap(err, "create the conductor's root")
	}
	if err := fillWorld(scaffold); err != nil {
		return -1, err
	}
	if err := errors.Join(mounts.PutProgram(scaffold+worldRoot+plan.ContainedPath, init),
		mounts.PutProgram(path.Join(scaffold, worldRuntime, name), runtime)); err != nil {
		return -1, err
	}
	if world, err = cloneTree(scaffold); err != nil {
		return -1, err
	}
	if err := unix.Unmount(scaffold, unix.MNT_DETACH); err != nil {
		return -1, errors.Join(fault.Wrap(err, "uncover %s", scaffold), unix.Close(world))
	}
	return world, nil
}

// fillWorld makes the directories and mounts of the conductor's root below a directory.
func fillWorld(below string) error {
	for _, dir := range []string{"/proc", "/dev", "/etc", "/tmp", "/sys", "/sys/fs", worldGroups, initlink.WorldView,
		worldRuntime, worldState, worldRoot, worldRoot + "/proc", worldRoot + "/dev", worldRoot + "/run",
		worldRoot + initlink.WorldView} {
		if err := os.Mkdir(below+dir, 0o755); err != nil {
			return fault.Wrap(err, "make %s", dir)
		}
	}
	proc, err := mounts.New("proc", mounts.PlainAttr) // the runtime may mount one only where one is fully visible
	if err != nil {
		return mounts.MaskedFault(err, plan.TierContainer)
	}
	if err := attach(proc, below+"/proc"); err != nil {
		return err
	}
	// Runtimes look for control groups. They see those of the sandbox alone, and cannot make any: the keeper's group
	// contains everything.
	groups, err := mounts.New("cgroup2", mounts.PlainAttr|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return fault.New(fault.Unsupported, "cannot show control groups to an OCI runtime").Because(err).
			WithHint("use --tier supervised")
	}
	if err := attach(groups, below+worldGroups); err != nil {
		return err
	}
	for _, at := range systemPaths {
		if err := putSystem(at, below+at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// putSystem shows a system directory or file of the host, read-only, at a path, or makes the link that it is. The error
// is fs.ErrNotExist if the host has none.
func putSystem(host, at string) error {
	st, err := os.Lstat(host)
	if err != nil {
		return fault.Wrap(err, "find the host's %s", host)
	}
	if err := os.MkdirAll(path.Dir(at), 0o755); err != nil {
		return fault.Wrap(err, "make %s", path.Dir(at))
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(host)
		return fault.Wrap(errors.Join(err, os.Symlink(to, at)), "copy the host's link %s", host)
	case st.IsDir():
		err = os.Mkdir(at, 0o755)
	default:
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return fault.Wrap(err, "make %s", at)
	}
	fd, err := cloneTree(host)
	if err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return errors.Join(fault.Wrap(err, "make the host's %s read-only", host), unix.Close(fd))
	}
	return attach(fd, at)
}

// enterWorld makes the conductor's root the root, in place of the sandbox's, which it mounts in it.
func enterWorld(world int) error {
	view, err := cloneTree("/")
	if err != nil {
		return err
	}
	if err := mounts.LeaveHost(func() error {
		err := unix.MoveMount(world, "", unix.AT_FDCWD, "/dev", unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err != nil {
			return fault.Wrap(err, "attach the conductor's root")
		}
		return fault.Wrap(unix.Fchdir(world), "enter the conductor's root")
	}); err != nil {
		return errors.Join(err, unix.Close(view))
	}
	if err := attach(view, initlink.WorldView); err != nil {
		return err
	}
	dev, err := cloneTree(initlink.WorldView + "/dev")
	if err != nil {
		return err
	}
	return attach(dev, "/dev")
}

// cloneTree returns a detached copy of the mount at a path, and of the mounts in it.
func cloneTree(at string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	return fd, fault.Wrap(err, "clone %s", at)
}

// attach attaches a detached mount at a path, and closes its descriptor.
func attach(mount int, at string) error {
	err := unix.MoveMount(mount, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return fault.Wrap(errors.Join(err, unix.Close(mount)), "attach %s", at)
}

// closeAll closes descriptors.
func closeAll(fds []int) (err error) {
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return fault.Wrap(err, "close the sandbox's files")
}
