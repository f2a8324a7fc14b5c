//go:build linux && (amd64 || arm64)

package procs

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ports/sockets"
)

// Dial starts to connect to a port of the sandbox and returns the socket, which the caller closes.
// The connection may not be complete: waiting for it is left to the receiver of the socket.
func (v *View) Dial(port uint16) (int, error) {
	if v.net != nil {
		return v.net.Dial(port)
	}
	if v.ownNet {
		// Every listener belongs to the sandbox, and most listen on these addresses. Reading the kernel's lists takes
		// milliseconds.
		for _, addr := range usual {
			if fd, err := connect(netip.AddrPortFrom(addr, port)); err == nil {
				return fd, nil
			}
		}
	}
	all, err := listeners(port)
	if err != nil {
		return -1, err
	}
	ours := func(uint64) bool { return true }
	if !v.ownNet && len(all) > 0 {
		held, err := v.holders(all)
		if err != nil {
			return -1, err
		}
		ours = func(inode uint64) bool { return held[inode] != 0 }
	}
	refused := fault.New(fault.NotFound, "no process listens on port %d", port)
	for _, to := range sockets.Routes(all, port, ours) {
		fd, err := connect(to)
		if err == nil {
			return fd, nil
		}
		refused.Err = err
	}
	return -1, refused
}

// usual are the addresses that are tried before the kernel's lists are read.
var usual = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

// connect starts to connect.
func connect(to netip.AddrPort) (int, error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fault.Wrap(err, "create a socket")
	}
	if err = unix.Connect(fd, addr); err == nil || errors.Is(err, unix.EINPROGRESS) {
		err = refusal(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fault.Wrap(err, "connect to %s", to)
	}
	return fd, nil
}

// refusalMS is how long refusal waits, in milliseconds.
const refusalMS = 20

// refusal waits until a connection that was started is refused or established. It waits at most refusalMS, which is
// enough unless the queue of the listener is full.
func refusal(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, refusalMS); err != nil || n != 1 {
		return nil //nolint:nilerr // the receiver of the socket gets the error
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err == nil && code != 0:
		return unix.Errno(code)
	case err == nil && OwnEnd(fd):
		return unix.ECONNREFUSED
	}
	return err
}

// OwnEnd reports whether a TCP socket is connected to itself. That can happen to a connection to a port of the loopback
// address on which no process listens.
func OwnEnd(fd int) bool {
	a, err := unix.Getsockname(fd)
	b, berr := unix.Getpeername(fd)
	if err != nil || berr != nil {
		return false
	}
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		b, ok := b.(*unix.SockaddrInet4)
		return ok && a.Port == b.Port && a.Addr == b.Addr
	case *unix.SockaddrInet6:
		b, ok := b.(*unix.SockaddrInet6)
		return ok && a.Port == b.Port && a.Addr == b.Addr
	}
	return false
}
