//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// insideUser returns the user that commands run as. In tier workspace with a daemon that is real root, that is root.
func insideUser(c plan.Config, u plan.User, f plan.Facts) (protocol.InsideUser, error) {
	uids, gids, err := plan.Maps(c, f)
	in := protocol.InsideUser{UID: u.UID, GID: u.GID, Groups: u.Groups, UIDs: uids, GIDs: gids}
	if c.Tier == plan.TierWorkspace && c.Caller.Root {
		in.UID, in.GID, in.Groups = 0, 0, nil
	}
	return in, err
}

// showInside answers with the root as init sees it, and waits until the caller closes the connection.
func (k *keeper) showInside(conn *net.UnixConn) error {
	r := protocol.InsideReply{User: k.user, Rooted: k.config.Tier != plan.TierWorkspace}
	if k.config.Tier == plan.TierGvisor {
		r.Unseen = initlink.InMemory(!k.config.KeepTmp)
	}
	fd := -1
	if r.Rooted {
		var err error
		if fd, err = k.openInside(); err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	if err := wire.WriteJSON(conn, protocol.FrameReply, r); err != nil {
		return nil // the caller is gone
	}
	if r.Rooted {
		if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
			return nil // the caller is gone
		}
	}
	over := make(chan struct{})
	k.calls.Go(func() {
		select {
		case <-k.stopping:
		case <-k.stop:
		case <-over:
			return
		}
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	})
	_, _ = conn.Read(make([]byte, 1)) // until the caller closes the connection
	close(over)
	return nil
}

// openInside opens the root of init, with O_PATH.
func (k *keeper) openInside() (int, error) {
	if k.proc == nil {
		return -1, fault.New(fault.Internal, "the monitor has no process of init")
	}
	root := "root"
	if k.config.Tier == plan.TierGvisor { // the conductor's own root, which contains only Coppice's files
		root += initlink.WorldView
	}
	fd, err := unix.Openat(int(k.proc.Fd()), root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, fault.New(fault.Unavailable, "the sandbox's init has exited").Because(err)
	}
	if err != nil {
		return -1, fault.Wrap(err, "open the sandbox's root")
	}
	if own, err := sameMount(fd, "/"); err != nil || own {
		unix.Close(fd)
		return -1, fault.New(fault.Internal, "init does not have its own root").Because(err)
	}
	return fd, nil
}

// sameMount reports whether fd is the mount at a path.
func sameMount(fd int, at string) (bool, error) {
	var a, b unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID|unix.STATX_INO, &a); err != nil {
		return false, err
	}
	if err := unix.Statx(unix.AT_FDCWD, at, 0, unix.STATX_MNT_ID|unix.STATX_INO, &b); err != nil {
		return false, err
	}
	if a.Mask&b.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		return a.Ino == b.Ino && a.Dev_major == b.Dev_major && a.Dev_minor == b.Dev_minor, nil
	}
	return a.Mnt_id == b.Mnt_id, nil
}

// rememberInit keeps init's directory in /proc open.
func (k *keeper) rememberInit(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fault.Wrap(err, "open init's %s", dir)
	}
	k.proc = os.NewFile(uintptr(fd), dir)
	return nil
}
