//go:build linux && (amd64 || arm64)

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/thread"
)

// forkAs calls fork on a thread whose effective user is uid and which keeps all of the process's capabilities, so that
// uid owns a user namespace that fork creates. The kernel also counts the users of a namespace against its owner
// (create_user_ns, kernel/user_namespace.c): a sandbox with 65,536 users could exhaust root's inotify instances.
func forkAs(uid uint32, fork func() (int, error)) (pid int, err error) {
	thread.OnOwn(func() {
		// Without it, the thread would lose its capabilities when its effective user changes from 0 (capabilities(7)).
		if err = unix.Prctl(unix.PR_SET_SECUREBITS, secNoSetuidFixup, 0, 0, 0); err != nil {
			err = fault.Wrap(err, "keep capabilities")
			return
		}
		const keep = ^uintptr(0)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
			err = fault.Wrap(e, "become the owner of the sandbox's user namespace")
			return
		}
		pid, err = fork()
	})
	return pid, err
}

// secNoSetuidFixup is SECBIT_NO_SETUID_FIXUP of linux/securebits.h.
const secNoSetuidFixup = 1 << 2
