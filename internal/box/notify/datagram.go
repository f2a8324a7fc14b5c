//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxDatagram is the size of the longest datagram.
const maxDatagram = 64 << 10

// sendto connects a socket for UDP to the address of a sendto(2). The kernel carries out the call: it ignores the
// address of a message on a socket of the kind that is used for UDP, and refuses it on other connected sockets.
func (s *server) sendto(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	if !e.packet {
		return proceed
	}
	address, err := c.askedAddress(c.args[4], c.args[5])
	if err != nil {
		return fail(err)
	}
	if !s.valid(c.id) {
		return verdict{errno: unix.ESRCH}
	}
	to, err := addressOf(address)
	if err != nil {
		return fail(err)
	}
	inode, err := inodeOf(socket)
	if err != nil {
		return fail(err)
	}
	switch {
	case s.inet.local(to.Addr()) && to.Port() != dns: // no socket for UDP has a port here
		return verdict{errno: unix.ECONNREFUSED}
	case e.peer == to && !e.spent:
		return proceed
	case e.peer.IsValid() && e.peer.Port() == dns && to.Port() == dns && !e.spent: // all are the same
		e.peer = to
		s.inet.names.set(inode, e)
		return proceed
	case e.peer.IsValid() && !e.spent:
		return verdict{errno: unix.EISCONN}
	}
	<-s.inet.brief // a dial may take longer
	s.connecting <- struct{}{}
	v := s.dial(c, socket, inode, e, to)
	<-s.connecting
	s.inet.brief <- struct{}{}
	if v.errno == 0 {
		return proceed
	}
	return v
}

// recvfrom carries out recvfrom(2) on a socket for UDP for a caller that asks for the address of the peer. Resolvers
// ignore answers that do not come from the address that they asked.
func (s *server) recvfrom(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	if !e.packet {
		return proceed
	}
	m, err := c.memory()
	if err != nil {
		return fail(err)
	}
	defer m.close()
	room := 0
	if c.args[5] != 0 {
		if room, err = m.size(c.args[5]); err != nil {
			return fail(err)
		}
	}
	flags, b := int(int32(c.args[3])), make([]byte, min(c.args[2], maxDatagram))
	n := 0
	err = s.attempt(c, socket, func() (err error) {
		n, _, err = unix.Recvfrom(socket, b, flags|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) && flags&unix.MSG_DONTWAIT != 0 {
			return errNow
		}
		return err
	})
	switch {
	case errors.Is(err, errCrowded):
		return later
	case errors.Is(err, errNow):
		return verdict{errno: unix.EAGAIN}
	case err != nil:
		return fail(err)
	case n == 0 && ended(socket): // an error of the dial; a datagram may be empty
		return verdict{errno: unix.ECONNREFUSED}
	}
	err = m.write(c.args[1], b[:min(n, len(b))])
	if err == nil && c.args[5] != 0 {
		name := sockaddr(e.family, e.peer)
		err = m.give(c.args[4], c.args[5], room, name, len(name))
	}
	if err != nil {
		return fail(err)
	}
	return verdict{value: int64(n)}
}

// errNow is EAGAIN for a call that does not wait whatever its socket is.
var errNow = errors.New("nothing to receive")

// ended reports whether the peer of a socket has closed its end.
func ended(socket int) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
}
