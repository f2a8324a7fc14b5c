//go:build linux && (amd64 || arm64)

package probe

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// answer classifies the error of a try. It returns OK for none, Missing for an errno by which the kernel says that it
// cannot or may not do it, and Unknown for everything else: an unexpected errno, a timeout or a killed child proves
// nothing about the host.
func answer(err error) State {
	var e unix.Errno
	switch {
	case err == nil:
		return OK
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), !errors.As(err, &e):
		return Unknown
	}
	switch e {
	case unix.EPERM, unix.EACCES, // refused
		unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, // not supported here
		unix.ENODEV, unix.ENXIO, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, // does not exist
		unix.EROFS, // a read-only home
		unix.EBUSY, // a container's own listener is installed already (seccomp(2))
		unix.EIO:   // tryOverlay: mounted, but does not work
		return Missing
	}
	return Unknown
}

// answerOf is answer for the errors of larger tests, in which a failure without an errno also means Missing.
func answerOf(err error) State {
	if errnoName(err) == "" && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return Missing
	}
	return answer(err)
}

// retry is the remedy for Unknown.
const retry = "free the resource that ran out (descriptors: ulimit -n, memory, space), then: coppice system probe"
