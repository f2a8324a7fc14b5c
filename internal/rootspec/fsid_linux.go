package rootspec

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// WithFSIDs runs fn as a thread whose file-system ids are uid and gid and whose
// capabilities are all that it may have.
//
// overlayfs acts on its layers with the credentials of whoever created it
// (creator_cred, fs/overlayfs/super.c). On shifted layers id 0 has no place, so
// that making the work directory fails with EOVERFLOW and the mount is silently
// read-only; the creator must be the id that 0 appears as. setfsuid(2) takes the
// file-system capabilities away, and capset(2) gives back what is permitted.
func WithFSIDs(uid, gid int, fn func() error) error {
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("capget: %w", err)
	}
	restore := func() error {
		// The results of setfsuid and setfsgid are the ids before, not errors.
		_, _ = unix.SetfsgidRetGid(unix.Getegid())
		_, _ = unix.SetfsuidRetUid(unix.Geteuid())
		return unix.Capset(&hdr, &caps[0])
	}
	_, _ = unix.SetfsgidRetGid(gid)
	_, _ = unix.SetfsuidRetUid(uid)
	all := caps
	for i := range all {
		all[i].Effective = all[i].Permitted
	}
	err := unix.Capset(&hdr, &all[0])
	if err == nil {
		err = fn()
	}
	if rerr := restore(); rerr != nil {
		// The thread must not be used for anything else: it ends with this
		// goroutine, since it stays locked.
		return fmt.Errorf("capset: %w", rerr)
	}
	runtime.UnlockOSThread()
	return err
}
