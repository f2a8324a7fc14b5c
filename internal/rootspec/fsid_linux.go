package rootspec

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// WithFSIDs runs fn on a thread whose file-system ids are uid and gid, with all permitted capabilities.
//
// overlayfs accesses its layers with the credentials of its creator (creator_cred, fs/overlayfs/super.c). On
// shifted layers id 0 is not mapped, so that making the work directory fails with EOVERFLOW and the mount is
// silently read-only; the creator must be the id that 0 appears as. setfsuid(2) drops the file-system
// capabilities, and capset(2) restores the permitted ones.
func WithFSIDs(uid, gid int, fn func() error) error {
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("capget: %w", err)
	}
	restore := func() error {
		return errors.Join(setFSIDs(unix.Geteuid(), unix.Getegid()), unix.Capset(&hdr, &caps[0]))
	}
	all := caps
	for i := range all {
		all[i].Effective = all[i].Permitted
	}
	err := setFSIDs(uid, gid)
	if err == nil {
		err = unix.Capset(&hdr, &all[0])
	}
	if err == nil {
		err = fn()
	}
	if rerr := restore(); rerr != nil {
		// The thread must not be used for anything else: it ends with this
		// goroutine, since it stays locked.
		return fault.Wrap(rerr, "restore the ids of the caller")
	}
	runtime.UnlockOSThread()
	return err
}

// setFSIDs sets those of this thread. The results of setfsuid(2) and setfsgid(2) are the ids
// before, so they are made again to see.
func setFSIDs(uid, gid int) error {
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	g, gerr := unix.SetfsgidRetGid(-1)
	u, uerr := unix.SetfsuidRetUid(-1)
	if err := errors.Join(gerr, uerr); err != nil {
		return err
	}
	if u != uid || g != gid {
		return fault.New(fault.Unavailable, "file-system ids are %d:%d, not %d:%d", u, g, uid, gid).
			WithHint("see what prevents setfsuid(2) in the daemon: coppice system probe")
	}
	return nil
}
