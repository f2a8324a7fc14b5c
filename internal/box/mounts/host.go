//go:build linux && (amd64 || arm64)

package mounts

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// HostCPU is the part of the host's /sys that a sandbox sees, without the leading slash.
const HostCPU = "sys/devices/system/cpu"

// Host contains detached mounts of the parts of the host that a sandbox gets. They are cloned while the host's root is
// attached, and attached to the sandbox's root after the host's is detached.
type Host struct {
	Proc      int  // a procfs
	OuterProc bool // Proc is the host's own
	CPU       int  // HostCPU; -1 if the host has none, or without outer
	devices   []hostDevice
}

// hostDevice is a file of the host's /dev.
type hostDevice struct {
	name string
	fd   int
}

// TakeHost makes the mount namespace private and clones the parts of the host that are needed. The caller closes the
// result. It also mounts a new procfs, which the kernel allows only while another one that is fully visible is mounted
// (mount_namespaces(7)). If parts of the host's procfs are masked, as in a container, outer takes the host's instead;
// without outer the error is EPERM.
func TakeHost(devices []string, outer bool) (h *Host, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fault.Wrap(err, "make the mounts private")
	}
	h = &Host{Proc: -1, CPU: -1}
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	h.Proc, err = New("proc", PlainAttr)
	if errors.Is(err, unix.EPERM) && outer {
		h.OuterProc = true
		h.Proc, err = unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	}
	if err != nil {
		return h, fault.Wrap(err, "mount /proc")
	}
	if err := CheckProc(h.Proc); err != nil {
		return h, err
	}
	for _, name := range devices {
		fd, err := Clone(unix.AT_FDCWD, "/dev/"+name, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
		if err != nil {
			return h, fault.Wrap(err, "clone the host's /dev/%s", name)
		}
		h.devices = append(h.devices, hostDevice{name, fd})
	}
	if outer {
		h.CPU, err = Clone(unix.AT_FDCWD, "/"+HostCPU, PlainAttr|unix.MOUNT_ATTR_RDONLY)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return h, fault.Wrap(err, "clone the host's /%s", HostCPU)
		}
	}
	return h, nil
}

// AttachDevices attaches the devices of host to files that it creates in dev, a new tmpfs.
func AttachDevices(dev int, host *Host) error {
	for _, d := range host.devices {
		fd, err := unix.Openat(dev, d.name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return fault.Wrap(err, "create /dev/%s", d.name)
		}
		err = AttachOver(d.fd, fd)
		unix.Close(fd)
		if err != nil {
			return fault.Wrap(err, "attach /dev/%s", d.name)
		}
	}
	return nil
}

// Close closes the descriptors. Attached mounts stay.
func (h *Host) Close() {
	for _, d := range h.devices {
		unix.Close(d.fd)
	}
	for _, fd := range []int{h.Proc, h.CPU} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// CheckProc checks that a descriptor refers to a procfs. Init relies on what it reads there.
func CheckProc(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fault.Wrap(err, "inspect /proc")
	}
	if st.Type != unix.PROC_SUPER_MAGIC {
		return fault.New(fault.Unsupported, "/proc of the host is not a procfs").
			WithHint("mount one: mount -t proc proc /proc")
	}
	return nil
}

// LeaveHost makes the directory that enter changes to the root, and detaches the host's root.
func LeaveHost(enter func() error) error {
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
