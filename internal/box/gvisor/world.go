//go:build linux && (amd64 || arm64)

package gvisor

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/mounts"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The conductor has its own root, so that the processes it starts cannot reach the host, and the sandbox has no
// influence on the paths that the conductor opens.
const (
	worldBox    = "/box"         // the sandbox's files
	worldShared = "/shared"      // shared directories of the host, by number
	worldBinary = "/bin/coppice" // in memory images, so it keeps this name
	worldClient = "/bin/coppice-client"
	worldState  = "/state"
)

// worldDevices are the devices that a Go program opens.
var worldDevices = []string{"null", "zero", "urandom"}

// makeWorld builds the conductor's root and enters it, as package guest does with the sandbox's root in other tiers.
// trees are the program of init, the sandbox's files, g.Shared directories and, with g.Client, the program coppice. All
// of them are detached mounts, which it closes. The programs may be files in memory.
func makeWorld(g plan.Guest, trees []int) error {
	defer func() {
		for _, fd := range trees {
			unix.Close(fd)
		}
	}()
	host, err := mounts.TakeHost(worldDevices, false)
	if err != nil {
		return mounts.MaskedFault(err, plan.TierGvisor)
	}
	defer host.Close()
	if err := mounts.LeaveHost(func() error {
		if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
			return fault.Wrap(err, "create the conductor's root")
		}
		return fault.Wrap(unix.Chdir("/dev"), "enter the conductor's root")
	}); err != nil {
		return err
	}
	for _, dir := range []string{"/proc", "/dev", "/bin", "/tmp", worldBox, initlink.WorldView, worldShared, worldState} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fault.Wrap(err, "make %s", dir)
		}
	}
	return fillWorld(g, host, trees)
}

func fillWorld(g plan.Guest, host *mounts.Host, trees []int) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open the conductor's root")
	}
	defer unix.Close(root)
	if err := mounts.Attach(host.Proc, root, "proc"); err != nil {
		return err
	}
	dev, err := mounts.OpenPoint(root, "dev", unix.O_DIRECTORY)
	if err != nil {
		return fault.Wrap(err, "open the conductor's /dev")
	}
	defer unix.Close(dev)
	if err := mounts.AttachDevices(dev, host); err != nil {
		return err
	}
	if err := mounts.PutProgram(worldBinary, trees[0]); err != nil {
		return err
	}
	if g.Client {
		if err := mounts.PutProgram(worldClient, trees[2+g.Shared]); err != nil {
			return err
		}
	}
	if err := mountBox(g, root, trees[1]); err != nil {
		return err
	}
	for i, fd := range trees[2 : 2+g.Shared] {
		at := worldShared + "/" + strconv.Itoa(i)
		if err := os.Mkdir(at, 0o755); err != nil {
			return fault.Wrap(err, "make %s", at)
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fault.Wrap(err, "attach %s", at)
		}
	}
	return nil
}

// mountBox mounts the sandbox's files in the conductor's root. The sandbox controls their names, and its links would
// lead to the conductor's files, so no link is followed.
func mountBox(g plan.Guest, root, box int) error {
	if err := mounts.Attach(box, root, worldBox[1:]); err != nil {
		return err
	}
	covered := append([]string{"/proc", "/dev", "/sys"}, initlink.InMemory(g.Tmp)...)
	for _, at := range covered {
		fd, err := mounts.OpenPoint(box, at[1:], unix.O_DIRECTORY)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return mounts.PointFault(at[1:], err)
		default:
			unix.Close(fd)
		}
	}
	// gVisor also attaches the files that it shows in /run here, although the sandbox's kernel mounts its own file
	// system over /run.
	run, err := mounts.NewAt(box, "run", "tmpfs", mounts.PlainAttr, "mode=755", "size=64k")
	if err != nil {
		return err
	}
	unix.Close(run)
	if err := unix.Mount(worldBox, initlink.WorldView, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fault.Wrap(err, "mount the sandbox's files")
	}
	view, err := mounts.OpenPoint(root, initlink.WorldView[1:], unix.O_DIRECTORY)
	if err != nil {
		return fault.Wrap(err, "open %s", initlink.WorldView)
	}
	defer unix.Close(view)
	for _, at := range covered {
		if err := mounts.HideDir(view, at[1:]); err != nil {
			return fault.Wrap(err, "hide %s", at)
		}
	}
	return nil
}
