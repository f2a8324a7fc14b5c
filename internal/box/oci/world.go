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

// systemPart is one of systemPaths.
type systemPart struct {
	at   string
	link string // its target, if it is a link
	dir  bool
	fd   int // detached read-only mount; -1 for a link
}

// takeSystem clones the host's system directories.
func takeSystem() (parts []systemPart, err error) {
	for _, at := range systemPaths {
		st, err := os.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return parts, fault.Wrap(err, "find the host's %s", at)
		}
		p := systemPart{at: at, dir: st.IsDir(), fd: -1}
		if st.Mode()&fs.ModeSymlink != 0 {
			if p.link, err = os.Readlink(at); err != nil {
				return parts, fault.Wrap(err, "read the host's %s", at)
			}
			parts = append(parts, p)
			continue
		}
		p.fd, err = unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return parts, fault.Wrap(err, "clone the host's %s", at)
		}
		parts = append(parts, p)
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
		if err := unix.MountSetattr(p.fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return parts, fault.Wrap(err, "make the host's %s read-only", at)
		}
	}
	return parts, nil
}

// closeSystem closes the descriptors of parts. Attached mounts stay.
func closeSystem(parts []systemPart) {
	for _, p := range parts {
		if p.fd >= 0 {
			unix.Close(p.fd)
		}
	}
}

// put makes the part visible in the conductor's root.
func (p systemPart) put() error {
	if err := os.MkdirAll(path.Dir(p.at), 0o755); err != nil {
		return fault.Wrap(err, "make %s", path.Dir(p.at))
	}
	switch {
	case p.fd < 0:
		return fault.Wrap(os.Symlink(p.link, p.at), "make %s", p.at)
	case p.dir:
		if err := os.Mkdir(p.at, 0o755); err != nil {
			return fault.Wrap(err, "make %s", p.at)
		}
	default:
		if err := os.WriteFile(p.at, nil, 0o644); err != nil {
			return fault.Wrap(err, "make %s", p.at)
		}
	}
	return fault.Wrap(unix.MoveMount(p.fd, "", unix.AT_FDCWD, p.at, unix.MOVE_MOUNT_F_EMPTY_PATH), "attach %s", p.at)
}

// makeWorld makes the sandbox's root of trees (see guest.MakeRoot), and a root of the conductor's own around it, which
// it enters. The programs are detached mounts or files in memory; it closes them and trees. weak are the protections
// that are weaker than planned.
//
// The runtime starts the container in another root, which has the program of PID 1 and the sandbox's root in it.
// Runtimes resolve paths in the root that they are given and read its /etc/passwd and /etc/group, which a sandbox may
// have made links, FIFOs or endless files. Init enters the sandbox's root when no runtime runs any more.
func makeWorld(g plan.Guest, trees []int, init, runtime int) (weak []plan.Item, err error) {
	defer unix.Close(init)
	defer unix.Close(runtime)
	system, err := takeSystem()
	defer closeSystem(system)
	if err != nil {
		return nil, errors.Join(err, closeAll(trees))
	}
	proc, err := mounts.New("proc", mounts.PlainAttr) // the runtime may mount one only where one is fully visible
	if err != nil {
		return nil, errors.Join(mounts.MaskedFault(err, plan.TierContainer), closeAll(trees))
	}
	defer unix.Close(proc)
	// Runtimes look for control groups. They see those of the sandbox alone, and cannot make any: the keeper's group
	// contains everything.
	groups, err := mounts.New("cgroup2", mounts.PlainAttr|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, errors.Join(fault.New(fault.Unsupported, "cannot show control groups to an OCI runtime").Because(err).
			WithHint("use --tier supervised"), closeAll(trees))
	}
	defer unix.Close(groups)
	if weak, err = guest.MakeRoot(g, trees); err != nil {
		return nil, err
	}
	root, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fault.Wrap(err, "clone the sandbox's root")
	}
	defer unix.Close(root)
	dev, err := unix.OpenTree(unix.AT_FDCWD, "/dev", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return nil, fault.Wrap(err, "clone the sandbox's /dev")
	}
	defer unix.Close(dev)
	if err := mounts.NewRoot("/proc", "/dev", "/etc", "/tmp", "/sys", "/sys/fs", worldGroups, initlink.WorldView,
		worldRuntime, worldState, worldRoot, worldRoot+"/proc", worldRoot+"/dev", worldRoot+"/run",
		worldRoot+initlink.WorldView); err != nil {
		return nil, err
	}
	for _, m := range []struct {
		fd int
		at string
	}{{proc, "/proc"}, {dev, "/dev"}, {groups, worldGroups}, {root, initlink.WorldView}} {
		if err := unix.MoveMount(m.fd, "", unix.AT_FDCWD, m.at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return nil, fault.Wrap(err, "attach %s", m.at)
		}
	}
	for _, p := range system {
		if err := p.put(); err != nil {
			return nil, err
		}
	}
	if err := mounts.PutProgram(worldRoot+plan.ContainedPath, init); err != nil {
		return nil, err
	}
	return weak, mounts.PutProgram(path.Join(worldRuntime, g.Runtime), runtime)
}

// closeAll closes descriptors.
func closeAll(fds []int) (err error) {
	for _, fd := range fds {
		err = errors.Join(err, unix.Close(fd))
	}
	return fault.Wrap(err, "close the sandbox's files")
}
