package rootspec

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// WithFSIDs runs fn on a thread with the file-system IDs uid and gid, and with all permitted capabilities.
//
// overlayfs accesses its layers with the credentials of its creator (creator_cred, fs/overlayfs/super.c). On shifted
// layers ID 0 is not mapped, so that creating the work directory fails with EOVERFLOW and the mount is silently
// read-only. The creator must have the ID that 0 appears as. setfsuid(2) drops the file-system capabilities, and
// capset(2) restores the permitted ones.
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
		// The thread must not be used for anything else. It stays locked, and so exits with this goroutine.
		return fault.Wrap(rerr, "restore the ids of the caller")
	}
	runtime.UnlockOSThread()
	return err
}

// setFSIDs sets the file-system IDs of this thread. setfsuid(2) and setfsgid(2) return the previous IDs and report no
// errors, so they are called again to check.
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
