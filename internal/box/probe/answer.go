//go:build linux && (amd64 || arm64)

package probe

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// answer classifies the error of a try: OK for none, Missing for an errno by which the kernel says that it
// cannot or may not do it, and Unknown for everything else: an unexpected errno, a timeout and a killed child
// say nothing about the host.
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
		unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, // not known to this kernel or file system
		unix.ENODEV, unix.ENXIO, unix.ENOENT, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, // not there
		unix.EROFS, // a home that cannot be written
		unix.EBUSY, // a container's own listener has the place (seccomp(2))
		unix.EIO:   // tryOverlay: it was mounted, and does not work
		return Missing
	}
	return Unknown
}

// answerOf is answer for errors of larger tests, which say no without an errno.
func answerOf(err error) State {
	if errnoName(err) == "" && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return Missing
	}
	return answer(err)
}

// retry is the remedy for Unknown.
const retry = "free the resource that ran out (descriptors: ulimit -n, memory, space), then: coppice system probe"
