//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/fault"
)

// contained is what init finds about the container in which it runs.
type contained struct {
	pid        int
	ownProc    bool              // /proc is that of the container's pid namespace
	namespaces map[string]uint64 // as in initlink.Outside, like root
	status     map[string]string // of /proc/self/status
	open       []string          // paths of /proc that are to be hidden or read-only, and are not
}

// checkContainer returns an error unless the runtime has made the container that it was told to make. A runtime that
// leaves something out, such as a namespace or a filter, would otherwise leave out a wall of the sandbox.
func checkContainer(out initlink.Outside) error {
	c, err := findContained()
	if err != nil {
		return fault.Wrap(err, "examine the container")
	}
	if flaw := c.flaw(out); flaw != "" {
		return fault.New(fault.Unsupported, "the container is not as it was described: %s", flaw)
	}
	return nil
}

// enterContainer checks the container, and makes the sandbox's root, a detached mount, the root, with what belongs to
// the container's namespaces. The runtime never had this mount: one that binds it without what is mounted in it would
// show the hidden files.
func enterContainer(out initlink.Outside, root int) error {
	if err := checkContainer(out); err != nil {
		return err
	}
	// pivot_root(2) requires the root to be mounted.
	err := unix.MoveMount(root, "", unix.AT_FDCWD, initlink.WorldView, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return fault.Wrap(err, "attach the sandbox's root")
	}
	for _, name := range []string{"proc", "dev/mqueue"} {
		mount, err := unix.OpenTree(unix.AT_FDCWD, "/"+name, unix.OPEN_TREE_CLOEXEC)
		if errors.Is(err, fs.ErrNotExist) && name != "proc" { // a kernel without POSIX message queues
			continue
		}
		if err != nil {
			return fault.Wrap(err, "open /%s of the container", name)
		}
		err = mounts.Attach(mount, root, name)
		unix.Close(mount)
		if err != nil {
			return err
		}
	}
	return mounts.LeaveHost(func() error { return fault.Wrap(unix.Fchdir(root), "enter the sandbox's root") })
}

// findContained examines this process.
func findContained() (c contained, err error) {
	c.pid = os.Getpid()
	if c.ownProc, err = notify.OwnsProc(); err != nil || !c.ownProc {
		return c, err
	}
	if c.namespaces, err = initlink.NamespacesOf(); err != nil {
		return c, err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return c, err
	}
	c.status = map[string]string{}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		c.status[key] = strings.TrimSpace(value)
	}
	masked, readOnly := ProcLimits()
	if c.open, err = notCovered(masked); err != nil {
		return c, err
	}
	more, err := notReadOnly(readOnly)
	c.open = append(c.open, more...)
	return c, err
}

// notCovered returns those of paths that exist and on which nothing is mounted.
func notCovered(paths []string) (open []string, err error) {
	for _, p := range paths {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, p, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return open, fault.Wrap(err, "examine %s", p)
		}
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			open = append(open, p)
		}
	}
	return open, nil
}

// notReadOnly returns those of paths that exist and are not on a read-only mount.
func notReadOnly(paths []string) (open []string, err error) {
	for _, p := range paths {
		var st unix.Statfs_t
		err := unix.Statfs(p, &st)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return open, fault.Wrap(err, "examine %s", p)
		}
		if st.Flags&unix.ST_RDONLY == 0 {
			open = append(open, p)
		}
	}
	return open, nil
}

// flaw returns how the container differs from that of the bundle; "" if it does not.
func (c contained) flaw(out initlink.Outside) string {
	if c.pid != 1 {
		return "init is process " + strconv.Itoa(c.pid) + " of its namespace"
	}
	if !c.ownProc {
		return "/proc is not that of its processes"
	}
	for _, ns := range initlink.OwnNamespaces {
		if c.namespaces[ns] == out.Namespaces[ns] {
			return "it shares the conductor's " + ns + " namespace"
		}
	}
	for _, ns := range initlink.KeptNamespaces {
		if c.namespaces[ns] != out.Namespaces[ns] {
			return "it has another " + ns + " namespace"
		}
	}
	for key, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
		if c.status[key] != want {
			return key + " is " + strconv.Quote(c.status[key]) + ", not " + want
		}
	}
	for _, key := range []string{"CapBnd", "CapPrm", "CapEff"} {
		if has, err := strconv.ParseUint(c.status[key], 16, 64); err != nil || has != out.Caps {
			return key + " is " + strconv.Quote(c.status[key]) + ", not " + strconv.FormatUint(out.Caps, 16)
		}
	}
	if len(c.open) > 0 {
		slices.Sort(c.open)
		return strings.Join(c.open, ", ") + " can be read or written"
	}
	return ""
}

// closeInherited closes the descriptors that the runtime has left open, except the links: from a directory outside, the
// conductor's root can be reached (CVE-2024-21626). This process opens its own descriptors with close-on-exec, so those
// without it were inherited.
func closeInherited() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil {
			return err
		}
		if fd <= initlink.SetupFD {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if errors.Is(err, unix.EBADF) { // that of the list
			continue
		}
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			err = unix.Close(fd)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
