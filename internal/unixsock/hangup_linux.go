package unixsock

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// AwaitHangup waits until the other end of a socket is closed in both directions, and then returns true. It returns
// false if the socket is closed at this end first. Nothing else may read from the socket meanwhile, and the socket must
// be non-blocking, as those of package net are.
func AwaitHangup(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	// The poller reports a hang-up as readiness to read.
	return raw.Read(hungUp) == nil
}

// hungUp reports whether the other end of a socket is closed in both directions.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
