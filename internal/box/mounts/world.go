//go:build linux && (amd64 || arm64)

package mounts

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// What conductors need: processes with a root of their own, which start the sandbox's PID 1 from there.

// MaskedFault returns the error of a tier that needs a procfs of its own, which the kernel refuses with EPERM if parts
// of the present one are masked. It returns other errors unchanged.
func MaskedFault(err error, tier string) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	return fault.New(fault.Unsupported, "cannot use tier %s: parts of /proc are masked here, as in a container", tier).
		Because(err).
		WithHint("start coppice in a container whose /proc is not masked (docker run --security-opt " +
			"systempaths=unconfined), or use --tier supervised")
}

// PutProgram makes a program a new file at a path of the caller's root, which the sandbox does not control. fd is a
// detached mount of the program, or the program opened for reading, which is copied.
func PutProgram(at string, fd int) error {
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fault.Wrap(err, "make %s", at)
	}
	defer f.Close()
	err = unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return fault.Wrap(err, "attach %s", at)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.Wrap(err, "read the program for %s", at)
	}
	for off := int64(0); off < st.Size; {
		n, err := unix.Sendfile(int(f.Fd()), fd, &off, int(min(st.Size-off, 1<<30)))
		if err != nil || n == 0 {
			return fault.Wrap(errors.Join(err, unix.EIO), "copy the program for %s", at)
		}
	}
	return nil
}
