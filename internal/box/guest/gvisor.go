//go:build linux && (amd64 || arm64)

package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// What init does differently in tier gvisor, where the sandbox's own kernel has already set up the root.

// finishRoot mounts init's files in place, in the sandbox's own kernel.
func finishRoot(g plan.Guest) error {
	if err := keepPlaces(g.Fixed); err != nil {
		return err
	}
	if err := fillRun(g); err != nil {
		return err
	}
	if err := mountResolv(g); err != nil {
		return err
	}
	if err := setHostname(g); err != nil {
		return err
	}
	return mountTrust(g)
}

// keptAt is where keepPlaces mounts the copy of the root, out of reach of commands.
const keptAt = "/run/coppice-kept"

// keepPlaces makes the targets of mounts, and their parent directories, mount points of the sandbox's own kernel. The
// host protects a directory with a mount only from processes in the namespace of that mount, and gVisor's processes are
// in other namespaces: their rename would move the directory with everything in it, and their unlink would remove the
// mount. The mount points are in a copy of the root that commands cannot reach, so that within the root itself no
// directory is on a different file system than its siblings.
func keepPlaces(fixed []string) error {
	done := map[string]bool{}
	for _, p := range fixed {
		if _, err := os.Lstat(p); errors.Is(err, os.ErrNotExist) {
			continue // nothing was mounted there
		} else if err != nil {
			return fault.Wrap(err, "inspect %s", p)
		}
		if len(done) == 0 {
			if err := os.Mkdir(keptAt, 0o700); err != nil {
				return fault.Wrap(err, "make %s", keptAt)
			}
			if err := unix.Mount("/", keptAt, "", unix.MS_BIND, ""); err != nil {
				return fault.Wrap(err, "copy the root")
			}
			done["/"] = true
		}
		for _, at := range leading(p) {
			if done[at] {
				continue
			}
			if err := unix.Mount(keptAt+at, keptAt+at, "", unix.MS_BIND, ""); err != nil {
				return fault.Wrap(err, "bind %s in place", at)
			}
			done[at] = true
		}
	}
	if len(done) == 0 {
		return nil
	}
	return fault.Wrap(
		unix.Mount("tmpfs", keptAt, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=0"),
		"hide %s", keptAt)
}

// leading lists the directories above a clean path, the topmost first, and the path itself.
func leading(p string) (all []string) {
	for ; p != "/"; p = path.Dir(p) {
		all = append(all, p)
	}
	slices.Reverse(all)
	return all
}

// selfOf describes a connection to the sandbox's own socket.
func selfOf(fd int) initlink.Self {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Pid == 0 { // gVisor reports no process if it does not know the peer
		return initlink.Self{}
	}
	return initlink.Self{UID: &cred.Uid}
}

// listenSelf listens at the sandbox's own socket, and passes connections to the keeper.
func (d *daemon) listenSelf() error {
	if err := os.Mkdir(plan.SelfAt, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfAt)
	}
	at := path.Join(plan.SelfAt, plan.SelfName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return fault.Wrap(err, "listen at %s", at)
	}
	if err := os.Chmod(at, 0o666); err != nil {
		return fault.Wrap(err, "make %s accessible to all users", at)
	}
	if err := os.Symlink(at, plan.SelfSocket); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfSocket)
	}
	// The goroutine ends with this process: nothing outlives PID 1.
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				fmt.Fprintln(os.Stderr, "coppice-init: the sandbox's own socket:", err)
				return
			}
			raw, err := c.SyscallConn()
			if err == nil {
				_ = raw.Control(func(fd uintptr) { err = d.link.Send(initlink.MsgSelf, selfOf(int(fd)), int(fd)) })
			}
			c.Close()
			if err != nil {
				return
			}
		}
	}()
	return nil
}
