package lineapi

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp reports whether the other end of a socket is closed in both directions.
func hungUp(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n == 1 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}

// peerUID returns the user of the process that made a connection, as this process sees it; nil if it is unknown.
func peerUID(c syscall.Conn) (uid *uint32) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = &cred.Uid
		}
	})
	if err != nil {
		return nil
	}
	return uid
}
