//go:build linux && (amd64 || arm64)

package notify

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// accept carries out accept(2) and accept4(2).
func (s *server) accept(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	flags := 0
	if c.nr == unix.SYS_ACCEPT4 {
		flags = int(int32(c.args[3]))
	}
	if flags&^(unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0 {
		return verdict{errno: unix.EINVAL}
	}
	if on, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || on == 0 {
		return verdict{errno: unix.EINVAL}
	}
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	room, asked := 0, c.args[1] != 0
	if asked {
		if room, err = m.size(c.args[2]); err != nil {
			return fail(err)
		}
	}
	peer := -1
	err = s.attempt(c, socket, unix.POLLIN, func() (err error) {
		peer, err = s.acceptFrom(socket, flags)
		return err
	})
	if err != nil {
		return s.outcome(0, err)
	}
	e.spent = false
	inode, err := inodeOf(peer)
	if err == nil {
		here := s.inet.source(e.local.Addr())
		e.local = netip.AddrPortFrom(here, e.local.Port())
		e.peer = netip.AddrPortFrom(here, passing(inode))
		s.inet.names.set(inode, e)
	}
	if err == nil && asked {
		name := sockaddr(e.family, e.peer)
		err = m.give(c.args[1], c.args[2], room, name, len(name))
	}
	if err != nil {
		unix.Close(peer)
		return fail(err)
	}
	return s.hand(c, peer, addition{newfileFlags: uint32(flags) & unix.O_CLOEXEC})
}

// acceptFrom accepts a connection that waits, or returns EAGAIN. It never waits in the kernel, with a thread of this
// process and the socket: another caller may take the connection.
func (s *server) acceptFrom(socket, flags int) (int, error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return -1, err
	}
	one := &s.inet.accepting[inode%uint64(len(s.inet.accepting))]
	one.Lock()
	defer one.Unlock()
	if !ready(socket, unix.POLLIN) { // a caller that clears O_NONBLOCK meanwhile gains nothing
		return -1, unix.EAGAIN
	}
	defer unblock(socket)()
	peer, _, err := unix.Accept4(socket, flags|unix.SOCK_CLOEXEC)
	return peer, err
}
