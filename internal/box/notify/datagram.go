//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	maxDatagram = 64 << 10 // a buffer for any datagram
	maxPayload  = 65507    // the longest payload over IPv4
)

// nowhere reports whether no datagram can be sent to an address. Resolvers connect sockets to such only to see which
// address of the sandbox is used.
func (n *Internet) nowhere(to netip.AddrPort) bool {
	return to.Port() == 0 || n.local(to.Addr()) && to.Port() != dns
}

// retarget carries out connect(2) on a socket for UDP. The zero address leaves it without a peer.
func (s *server) retarget(c caller, socket int, inode uint64, to netip.AddrPort) verdict {
	f, ok := s.inet.kept.flow(inode)
	if !ok {
		return verdict{errno: unix.ECONNREFUSED}
	}
	w := patience(c)
	if errno := f.take(w); errno != 0 {
		return verdict{errno: refusal(errno)}
	}
	defer f.leave()
	return verdict{errno: s.aim(w, f, socket, inode, to, true)}
}

// aim gives a socket for UDP another peer. Answers of the earlier one that the caller has not received are lost, so
// that recvfrom never says that they are the new one's. The calling function has the turn.
func (s *server) aim(w *waiting, f *flow, socket int, inode uint64, to netip.AddrPort, connected bool) unix.Errno {
	errno := f.part(w)
	if errno != 0 {
		to = netip.AddrPort{}
	}
	e, ok := s.inet.names.get(inode)
	if !ok {
		return unix.ECONNREFUSED
	}
	e.peer, e.connected = to, to.IsValid() && connected
	if to.IsValid() {
		port := passing(inode)
		if e.local.Port() != 0 {
			port = e.local.Port()
		}
		e.local = netip.AddrPortFrom(s.inet.source(to.Addr()), port)
	}
	f.rename(func() {
		discard(socket)
		s.inet.names.set(inode, e)
	})
	if errno != 0 || !to.IsValid() || s.inet.nowhere(to) {
		return errno
	}
	if errno = s.meet(w, f, to, e.local.Port()); errno != 0 {
		e.peer, e.connected = netip.AddrPort{}, false
		f.rename(func() { s.inet.names.set(inode, e) })
	}
	return errno
}

// datagram is one to an address.
type datagram struct {
	socket int
	inode  uint64
	flow   *flow
	to     netip.AddrPort
	b      []byte
}

// sendto sends a datagram to an address. The kernel would carry out the call with the peer that the socket has by then.
func (s *server) sendto(c caller) verdict {
	socket, e, ok := s.known(c)
	if !ok {
		return proceed
	}
	defer unix.Close(socket)
	if !e.packet {
		return proceed
	}
	d, err := s.askedDatagram(c, socket)
	if err != nil {
		return fail(err)
	}
	for err = errOther; errors.Is(err, errOther); {
		err = s.attempt(c, socket, unix.POLLOUT, func() error {
			if !d.flow.tryTake() {
				return errOther
			}
			defer d.flow.leave()
			return now(s.send(d), c.args[3])
		})
		if errors.Is(err, errOther) {
			if err = now(s.sendOther(c, d), c.args[3]); errors.Is(err, unix.EAGAIN) {
				err = errOther // there is no room: wait for some
			}
		}
	}
	switch {
	case errors.Is(err, errCrowded):
		return later
	case err != nil:
		return fail(err)
	}
	return verdict{value: int64(len(d.b))}
}

// askedDatagram returns the datagram of a sendto(2).
func (s *server) askedDatagram(c caller, socket int) (*datagram, error) {
	address, err := c.askedAddress(c.args[4], c.args[5])
	if err != nil {
		return nil, err
	}
	if c.args[2] > maxPayload {
		return nil, unix.EMSGSIZE
	}
	d := &datagram{socket: socket, b: make([]byte, c.args[2])}
	if len(d.b) > 0 {
		if n, err := c.read(c.args[1], d.b); err != nil || n < len(d.b) {
			return nil, unix.EFAULT
		}
	}
	if !s.valid(c.id) {
		return nil, unix.ESRCH
	}
	if d.to, err = addressOf(address); err != nil {
		return nil, err
	}
	if d.inode, err = inodeOf(socket); err != nil {
		return nil, err
	}
	f, ok := s.inet.kept.flow(d.inode)
	switch {
	case d.to.Port() == 0:
		return nil, unix.EINVAL
	case !ok, s.inet.nowhere(d.to): // no socket for UDP has a port here
		return nil, unix.ECONNREFUSED
	}
	d.flow = f
	return d, nil
}

// errOther means that a datagram is not for the peer of its socket, or that another call may be about to change it.
var errOther = errors.New("the socket has another peer")

// send sends a datagram to the peer, and never waits. The calling function has the turn.
func (s *server) send(d *datagram) error {
	e, _ := s.inet.names.get(d.inode)
	same := e.peer == d.to || e.peer.Port() == dns && d.to.Port() == dns // the entrance answers for every resolver
	switch {
	case !e.peer.IsValid(), !same && !e.connected:
		return errOther
	case !same:
		return unix.EISCONN
	case e.peer != d.to:
		e.peer = d.to
		d.flow.rename(func() { s.inet.names.set(d.inode, e) })
	}
	err := unix.Sendmsg(d.socket, d.b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return unix.ECONNREFUSED // the entrance has ended
	}
	return err
}

// sendOther sends a datagram after its address has become the peer of the socket.
func (s *server) sendOther(c caller, d *datagram) error {
	<-s.inet.brief // this may take longer
	defer func() { s.inet.brief <- struct{}{} }()
	s.connecting <- struct{}{}
	defer func() { <-s.connecting }()
	w := patience(c)
	if errno := d.flow.take(w); errno != 0 {
		return refusal(errno)
	}
	defer d.flow.leave()
	err := s.send(d)
	if !errors.Is(err, errOther) {
		return err
	}
	if errno := s.aim(w, d.flow, d.socket, d.inode, d.to, false); errno != 0 {
		return errno
	}
	return s.send(d)
}

// now returns errNow instead of EAGAIN for a call with MSG_DONTWAIT among its flags.
func now(err error, flags uint64) error {
	if errors.Is(err, unix.EAGAIN) && flags&unix.MSG_DONTWAIT != 0 {
		return errNow
	}
	return err
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
	err = s.attempt(c, socket, unix.POLLIN, func() (err error) {
		n, e, err = s.receiveFrom(socket, e, b, flags|unix.MSG_DONTWAIT)
		return now(err, c.args[3])
	})
	switch {
	case errors.Is(err, errCrowded):
		return later
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

// receiveFrom receives a datagram, and returns what the socket is with the peer from which it is, or e.
func (s *server) receiveFrom(socket int, e endpoint, b []byte, flags int) (n int, _ endpoint, err error) {
	inode, err := inodeOf(socket)
	if err != nil {
		return 0, e, err
	}
	receive := func() {
		n, _, err = unix.Recvfrom(socket, b, flags)
		if named, ok := s.inet.names.get(inode); ok {
			e = named
		}
	}
	if f, ok := s.inet.kept.flow(inode); ok {
		f.rename(receive)
	} else {
		receive()
	}
	return n, e, err
}

// errNow is EAGAIN for a call that does not wait whatever its socket is.
var errNow = errors.New("nothing to receive")

// ended reports whether the peer of a socket has closed its end.
func ended(socket int) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
}
