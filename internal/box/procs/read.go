//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// readSmall reads the beginning of a file of /proc into buf.
func readSmall(path string, buf []byte) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	n := 0
	for n < len(buf) {
		k, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k <= 0 {
			break
		}
		n += k
	}
	return buf[:n]
}

// Cmdline reads the beginning of /proc/PID/cmdline, the arguments of a process, into buf, and returns what it read. The
// arguments are in the memory of the process, and a read of that memory can block, for example if it maps a file of
// FUSE.
func Cmdline(pid int, buf []byte) []byte {
	return readSmall("/proc/"+strconv.Itoa(pid)+"/cmdline", buf)
}

// nameOf returns the name of a process, from /proc/PID/comm.
func nameOf(pid int) []byte {
	var buf [64]byte
	return bytes.Clone(bytes.TrimSuffix(readSmall("/proc/"+strconv.Itoa(pid)+"/comm", buf[:]), []byte("\n")))
}
