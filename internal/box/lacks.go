//go:build linux && (amd64 || arm64)

package box

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// errNoGroups says that this host has no control groups of a version, or none of ours.
var errNoGroups = errors.New("no control groups")

// noGroup reports whether err, of what makes a control group or writes one of its files,
// says that this host does not have that, or does not leave it to us: there is no such
// hierarchy or file, it is read-only, another user's, or of a threaded subtree (cgroups(7)).
// Any other error, such as that of a process without descriptors or memory, says nothing
// of the host.
func noGroup(err error) bool {
	return errors.Is(err, errNoGroups) || isOneOf(err, unix.ENOENT, unix.EACCES, unix.EPERM, unix.EROFS, unix.EOPNOTSUPP, unix.ENODEV)
}

// noController is noGroup for cgroup.subtree_control: besides, the kernel may not have the
// controller (EINVAL), or processes may be where none may be beside it (EBUSY).
func noController(err error) bool { return noGroup(err) || isOneOf(err, unix.EINVAL, unix.EBUSY) }

// noLandlock reports whether err, of landlock_create_ruleset(2), says that the kernel does
// not have it (ENOSYS), does not use it (EOPNOTSUPP), or that a seccomp filter around us
// does not know the call (EPERM).
func noLandlock(err error) bool { return isOneOf(err, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM) }

// groupFault is the error of a start whose control group cannot be made for a reason that
// passes. To start without it would drop the limits that it keeps.
func groupFault(err error) error {
	return fault.New(fault.Unavailable, "make the sandbox's control group").Because(err).
		WithHint("try again when the machine does less; see what this host allows: coppice probe")
}
