//go:build linux

package program

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Sealed returns a file in memory with the program that write writes. Its contents cannot be changed (F_ADD_SEALS in
// fcntl(2)), and every user may read and execute it. Seals do not protect its mode, times, extended attributes and
// locks: a process in a sandbox that opens the file, as by /proc/PID/exe, can change those. So sandboxes must not share
// it. The caller closes it.
func Sealed(name string, write func(io.Writer) error) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Depending on the sysctl vm.memfd_noexec, a file is only executable with MFD_EXEC.
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err = write(f); err == nil {
		err = f.Chmod(0o555)
	}
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
