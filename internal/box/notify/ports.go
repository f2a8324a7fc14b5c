//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// maxTried is how many ports are tried for a caller that asks for any.
const maxTried = 256

// bind carries out bind(2) for an address of the Internet. The kernel does for other addresses: the caller could have
// made such a socket by itself.
func (s *server) bind(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	address, err := c.askedAddress(c.args[1], c.args[2])
	if err != nil {
		return fail(err)
	}
	if !s.valid(c.id) {
		return verdict{errno: unix.ESRCH}
	}
	if f := family(address); f == unix.AF_UNIX {
		return proceed
	} else if f != e.family && (f != unix.AF_UNSPEC || e.family != unix.AF_INET) {
		return verdict{errno: unix.EAFNOSUPPORT}
	} else if f == unix.AF_UNSPEC { // the wildcard of old programs
		address = sockaddr(unix.AF_INET, netip.AddrPort{})
	}
	at, err := addressOf(address)
	if err == nil {
		err = s.take(socket, e, at)
	}
	if err != nil {
		return fail(err)
	}
	return success
}

// take gives a socket a port.
func (s *server) take(socket int, e endpoint, at netip.AddrPort) error {
	inode, err := inodeOf(socket)
	switch {
	case err != nil:
		return err
	case !s.inet.local(at.Addr()):
		return unix.EADDRNOTAVAIL
	case e.packet && at.Port() != 0: // a Unix socket that keeps the bounds of messages needs a connection
		return unix.EADDRNOTAVAIL
	case e.packet:
		at = netip.AddrPortFrom(at.Addr(), passing(inode))
	case at.Port() != 0:
		s.inet.kept.settle(at.Port())
		err = s.inet.bind(socket, at)
	default:
		at, err = s.inet.bindAny(socket, at.Addr())
	}
	if err == nil {
		e.local = at
		s.inet.names.set(inode, e)
		if !e.packet {
			s.inet.kept.bound(inode, at.Port())
		}
	}
	return err
}

// bind binds a socket to a port. The file of a socket that is closed stays, and its port is free.
func (n *Internet) bind(socket int, at netip.AddrPort) error {
	n.taking.Lock()
	defer n.taking.Unlock()
	path := n.port(at)
	err := unix.Bind(socket, &unix.SockaddrUnix{Name: path})
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	if used, perr := n.used(path); perr != nil || used {
		return errors.Join(err, perr)
	}
	if err := unix.Unlink(path); err != nil {
		return err
	}
	return unix.Bind(socket, &unix.SockaddrUnix{Name: path})
}

// used reports whether a path is that of an open socket. The kernel compares the kinds of both sockets before it
// connects anything (unix_find_bsd in net/unix/af_unix.c), so that a listener notices nothing.
func (n *Internet) used(path string) (bool, error) {
	probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(probe)
	err = unix.Connect(probe, &unix.SockaddrUnix{Name: path})
	return !errors.Is(err, unix.ECONNREFUSED), nil
}

// bindAny binds a socket to a port that is free.
func (n *Internet) bindAny(socket int, to netip.Addr) (netip.AddrPort, error) {
	for range maxTried {
		at := netip.AddrPortFrom(to, n.free())
		err := n.bind(socket, at)
		if !errors.Is(err, unix.EADDRINUSE) {
			return at, err
		}
	}
	return netip.AddrPort{}, unix.EADDRINUSE
}

// free returns the port that is tried next.
func (n *Internet) free() uint16 {
	n.taking.Lock()
	defer n.taking.Unlock()
	if n.last < firstFree || n.last >= lastFree {
		n.last = firstFree
	} else {
		n.last++
	}
	return n.last
}

// listenInet gives a socket that stands for one of the Internet a port, if it has none.
func (s *server) listenInet(socket int) error {
	_, e, ok := s.endpoint(socket)
	switch {
	case !ok || len(nameOf(socket, unix.SYS_GETSOCKNAME)) > 0:
		return nil
	case e.packet:
		return unix.EOPNOTSUPP
	}
	any := netip.IPv4Unspecified()
	if e.family == unix.AF_INET6 {
		any = netip.IPv6Unspecified()
	}
	return s.take(socket, e, netip.AddrPortFrom(any, 0))
}
