//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// hostCPU is what the sandbox sees of the host's /sys.
const hostCPU = "sys/devices/system/cpu"

// hostMounts are detached mounts of the parts of the host that a sandbox gets. They are made
// while the host's root is attached, and attached to the sandbox's root after it is detached.
type hostMounts struct {
	proc      int // a procfs; -1 when none was asked for
	outerProc bool
	cpu       int // hostCPU; -1 where the host has none
	devices   []hostDevice
}

type hostDevice struct {
	name string
	fd   int
}

// takeHost makes the mount namespace private and clones the parts of the host that are
// needed. The caller closes the result. A new procfs is mounted here too, since the kernel allows one only
// while another that is fully visible is mounted (mount_namespaces(7)). If parts of the
// host's are masked, as in a container, outer takes the host's instead; without outer the
// error is EPERM.
func takeHost(devices []string, outer bool) (h *hostMounts, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fault.Wrap(err, "make the mounts private")
	}
	h = &hostMounts{proc: -1, cpu: -1}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	h.proc, err = newMount("proc", plainAttr)
	if errors.Is(err, unix.EPERM) && outer {
		h.outerProc = true
		h.proc, err = unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	}
	if err != nil {
		return h, fault.Wrap(err, "mount /proc")
	}
	if err := isProc(h.proc); err != nil {
		return h, err
	}
	for _, name := range devices {
		fd, err := cloneMount(unix.AT_FDCWD, "/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return h, fault.Wrap(err, "clone the host's /dev/%s", name)
		}
		h.devices = append(h.devices, hostDevice{name, fd})
	}
	if outer {
		h.cpu, err = cloneMount(unix.AT_FDCWD, "/"+hostCPU, plainAttr|unix.MOUNT_ATTR_RDONLY)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return h, fault.Wrap(err, "clone the host's /%s", hostCPU)
		}
	}
	return h, nil
}

// Close closes the descriptors. Attached mounts stay.
func (h *hostMounts) Close() {
	for _, d := range h.devices {
		unix.Close(d.fd)
	}
	for _, fd := range []int{h.proc, h.cpu} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// isProc checks that a descriptor is of a procfs: what init believes about processes, it
// reads there.
func isProc(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fault.Wrap(err, "look at /proc")
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fault.New(fault.Unsupported, "/proc of the host is not a procfs").WithHint("mount one: mount -t proc proc /proc")
	}
	return nil
}

// leaveHost makes the directory that enter changes to the root, and takes the host's off.
func leaveHost(enter func() error) error {
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open the host's root")
	}
	defer unix.Close(host)
	if err := enter(); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fault.Wrap(err, "pivot to the root")
	}
	if err := unix.Fchdir(host); err != nil {
		return fault.Wrap(err, "enter the host's root")
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fault.Wrap(err, "detach the host's root")
	}
	return fault.Wrap(unix.Chdir("/"), "enter the root")
}
