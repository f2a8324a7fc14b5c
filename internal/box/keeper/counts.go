//go:build linux && (amd64 || arm64)

package keeper

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// leaveToOwner halves how many signals and how many bytes of POSIX messages may be queued for
// the keeper's user, and how much of its memory may be locked, as by MSG_ZEROCOPY. A user
// namespace gets the limits of its creator as the most that its users and the creator may
// have together (create_user_ns of kernel/user_namespace.c, since Linux 5.14), so no sandbox
// can use the other half. Call it once, before init is started.
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
