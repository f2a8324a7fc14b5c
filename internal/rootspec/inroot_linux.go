package rootspec

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// inRootTries is how often OpenInRoot retries a resolution that was disturbed.
const inRootTries = 1000

// OpenInRoot opens a name of a sandbox with dir as its root: links lead no further, and
// magic links nowhere. Where a rename or a mount anywhere on the machine disturbs the
// resolution of "..", openat2(2) fails with EAGAIN, which is not about the name, so
// OpenInRoot retries. The error is an errno about the name, or of kind fault.Unavailable
// if the retries run out or the host lacks a resource.
func OpenInRoot(dir int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range inRootTries {
		fd, err := unix.Openat2(dir, name, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, ofHost(err)
		}
	}
	return -1, fault.New(fault.Unavailable, "%q cannot be opened while other files are renamed all the time", name).
		WithHint("try again when the machine does less")
}

// ofNames are the errors that say what a name is, or what is there (open(2)).
var ofNames = []unix.Errno{
	unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EXDEV, unix.EACCES, unix.EPERM, unix.EROFS,
	unix.ENXIO, unix.ENODEV, unix.EBUSY, unix.ETXTBSY, unix.EOVERFLOW, unix.ESTALE,
}

// ofHost makes an error that is not about the name a fault.Unavailable.
func ofHost(err error) error {
	if err == nil || slices.ContainsFunc(ofNames, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return err
	}
	return fault.New(fault.Unavailable, "the host failed").Because(err).
		WithHint("free what it ran out of (descriptors: ulimit -n, memory), or see what broke: dmesg; then try again")
}
