//go:build linux && (amd64 || arm64)

package relay

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/thread"
)

// owner is the user that commands run as.
type owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// ownerOf returns the user that the message Setup names.
func ownerOf(m initlink.Message) (owner, error) {
	var g struct {
		User owner `json:"user"`
	}
	err := m.Decode(&g)
	return g.User, err
}

// act runs fn, on a thread with the effective ids of o unless these are root's. What fn creates belongs to o. The
// kernel of gVisor has neither fchown(2) for pipes nor setfsuid(2).
func (o owner) act(fn func() error) (err error) {
	if o == (owner{}) {
		return fn()
	}
	thread.OnOwn(func() { // system calls for this thread only; those of package syscall would apply to all threads
		const same = ^uintptr(0)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, same, uintptr(o.GID), same); e != 0 {
			err = fmt.Errorf("set the effective group to %d: %w", o.GID, e)
			return
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(o.UID), same); e != 0 {
			err = fmt.Errorf("set the effective user to %d: %w", o.UID, e)
			return
		}
		err = fn()
	})
	return err
}
