package broker

import (
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/thread"
)

// harden keeps the memory of this process to itself: it is not dumped, and processes of the same user can neither read
// it nor attach to it. It is not swapped out if the process may lock as much as it wants.
func harden() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fault.Wrap(err, "disable core dumps")
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fault.Wrap(err, "protect the memory of the broker of secrets")
	}
	var most unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &most)
	if err == nil && most.Cur == unix.RLIM_INFINITY || thread.HasCapability(unix.CAP_IPC_LOCK) {
		_ = unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT) // else pages with values alone: lockPages
	}
	return nil
}
