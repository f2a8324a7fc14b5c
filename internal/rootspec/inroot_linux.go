package rootspec

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// OpenInRoot opens a name of a sandbox with dir as its root: links cannot leave it, and magic links are not followed.
// The error is an errno about the name, or of kind fault.Unavailable if renames interrupted every attempt or the host
// lacks a resource.
func OpenInRoot(dir int, name string, flags int) (int, error) {
	fd, err := dirfd.Open(dir, name, flags, dirfd.InRoot)
	if errors.Is(err, unix.EAGAIN) {
		return -1, fault.New(fault.Unavailable, "cannot open %q: files are being renamed continuously", name).
			WithHint("try again when the machine is less busy")
	}
	return fd, ofHost(err)
}

// ofNames are the errors that are about a name or its file (open(2)).
var ofNames = []unix.Errno{
	unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EXDEV, unix.EACCES, unix.EPERM, unix.EROFS,
	unix.ENXIO, unix.ENODEV, unix.EBUSY, unix.ETXTBSY, unix.EOVERFLOW, unix.ESTALE,
}

// ofHost converts an error that is not about the name to kind fault.Unavailable.
func ofHost(err error) error {
	if err == nil || slices.ContainsFunc(ofNames, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return err
	}
	return fault.New(fault.Unavailable, "the host failed").Because(err).
		WithHint("free the resource that ran out (descriptors: ulimit -n, memory), or see dmesg; then try again")
}
