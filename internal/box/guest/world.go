//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The conductor of tier gvisor lives in a root of its own, so that nothing of the host is
// in reach of what it starts, and no path that it opens is the sandbox's to say.
const (
	WorldBox    = "/box"    // the sandbox's files
	WorldView   = "/view"   // the same, for who reaches in from outside: without what lies in the sandbox's memory
	WorldShared = "/shared" // directories of the host that are shown, by number
	WorldBinary = "/bin/coppice"
	WorldState  = "/state"
)

// ConductorArgv0 is the name that makes the binary a conductor: see package gvisor.
const ConductorArgv0 = "coppice-gvisor"

// ImageFiles are the files of a memory image, in the order in which gVisor takes them
// (runsc/sandbox, createSaveFiles): the kernel's state, what the pages are, and the pages.
var ImageFiles = [...]string{"checkpoint.img", "pages_meta.img", "pages.img"}

// worldDevices are what a program in Go opens.
var worldDevices = []string{"null", "zero", "urandom"}

// InMemory are the places of the sandbox that hold files which its own kernel keeps, so that
// what the live root has there is not seen inside; tmp says that /tmp is one.
func InMemory(tmp bool) []string {
	if tmp {
		return []string{"/run", "/tmp"}
	}
	return []string{"/run"}
}

// MakeWorld makes that root, as makeRoot makes the sandbox's in other tiers: trees are the
// binary, the sandbox's files, and g.Shared directories, all of them detached mounts that
// it closes. The binary may be a file in memory.
func MakeWorld(g plan.Guest, trees []int) error {
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fault.Wrap(err, "make the mounts private")
	}
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open the host's root")
	}
	defer unix.Close(host)
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fault.Wrap(err, "make the conductor's root")
	}
	if err := unix.Chdir("/dev"); err != nil {
		return fault.Wrap(err, "enter the conductor's root")
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fault.Wrap(err, "pivot to the conductor's root")
	}
	for _, dir := range []string{"/proc", "/dev", "/bin", "/tmp", WorldBox, WorldView, WorldShared, WorldState} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fault.Wrap(err, "make %s", dir)
		}
	}
	if err := fillWorld(g, host, trees); err != nil {
		return err
	}
	if err := unix.Fchdir(host); err != nil {
		return fault.Wrap(err, "enter the host's root")
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fault.Wrap(err, "take the host's root off")
	}
	return fault.Wrap(unix.Chdir("/"), "enter the conductor's root")
}

func fillWorld(g plan.Guest, host int, trees []int) error {
	if err := fresh("proc", "/proc", plain, ""); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fault.New(fault.Unsupported, "parts of /proc are masked here, as in a container: tier gvisor needs one of its own").Because(err).
				WithHint("start coppice in a container whose /proc is not masked (docker run --security-opt systempaths=unconfined), or use --tier supervised")
		}
		return err
	}
	if err := bindDevices(host, worldDevices); err != nil {
		return err
	}
	if err := putBinary(trees[0]); err != nil {
		return err
	}
	if err := unix.MoveMount(trees[1], "", unix.AT_FDCWD, WorldBox, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fault.Wrap(err, "attach the sandbox's files")
	}
	// gVisor attaches what it shows in /run to the files as well, where the sandbox's kernel
	// has a file system of its own above.
	if err := fresh("tmpfs", WorldBox+"/run", plain, "mode=755,size=64k"); err != nil {
		return err
	}
	if err := unix.Mount(WorldBox, WorldView, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fault.Wrap(err, "show the sandbox's files")
	}
	for _, at := range append([]string{"/proc", "/dev", "/sys"}, InMemory(g.Tmp)...) {
		err := unix.Mount("tmpfs", WorldView+at, "tmpfs", plain|unix.MS_RDONLY, "size=0,nr_inodes=1")
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fault.Wrap(err, "cover %s", at)
		}
	}
	for i, fd := range trees[2 : 2+g.Shared] {
		at := WorldShared + "/" + strconv.Itoa(i)
		if err := os.Mkdir(at, 0o755); err != nil {
			return fault.Wrap(err, "make %s", at)
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fault.Wrap(err, "attach %s", at)
		}
	}
	return nil
}

// putBinary makes the binary a file of the conductor's root.
func putBinary(fd int) error {
	f, err := os.OpenFile(WorldBinary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fault.Wrap(err, "make %s", WorldBinary)
	}
	defer f.Close()
	err = unix.MoveMount(fd, "", unix.AT_FDCWD, WorldBinary, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return fault.Wrap(err, "attach the binary")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.Wrap(err, "read the binary")
	}
	for at := int64(0); at < st.Size; {
		n, err := unix.Sendfile(int(f.Fd()), fd, &at, int(min(st.Size-at, 1<<30)))
		if err != nil || n == 0 {
			return fault.Wrap(errors.Join(err, unix.EIO), "copy the binary")
		}
	}
	return nil
}
