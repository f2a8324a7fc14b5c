//go:build linux && (amd64 || arm64)

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// leaveToOwner halves the limits of queued signals, of bytes in POSIX message queues and of locked memory (as by
// MSG_ZEROCOPY) for the keeper's user. The limits of the creator of a user namespace become the most that its users and
// the creator may use together (create_user_ns of kernel/user_namespace.c, since Linux 5.14), so no sandbox can use the
// other half. It must be called once, before init is started.
func leaveToOwner() error {
	for what, name := range map[int]string{unix.RLIMIT_SIGPENDING: "queued signals", unix.RLIMIT_MSGQUEUE: "messages",
		unix.RLIMIT_MEMLOCK: "locked memory"} {
		var l unix.Rlimit
		if err := unix.Getrlimit(what, &l); err != nil {
			return fault.Wrap(err, "read the limit of %s", name)
		}
		l.Max /= 2
		l.Cur = min(l.Cur, l.Max)
		if err := unix.Setrlimit(what, &l); err != nil {
			return fault.Wrap(err, "lower the limit of %s", name)
		}
	}
	return nil
}
