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
	if errno := w.enter(f.turn); errno != 0 {
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

// datagram is one to an address. The zero address is the peer that connect(2) has named.
type datagram struct {
	socket int
	inode  uint64
	flow   *flow
	to     netip.AddrPort
	b      []byte
}

// sendto sends a datagram to an address. The kernel would carry out the call with the peer that the socket has by then.
func (s *server) sendto(c caller) verdict {
	return s.sending(c, "sendto", func(socket int) (int, error) { return s.sendAsked(c, socket) })
}

// sendAsked sends the datagram of a sendto(2).
func (s *server) sendAsked(c caller, socket int) (int, error) {
	address, err := c.askedAddress(c.args[4], c.args[5])
	if err != nil {
		return 0, err
	}
	if c.args[2] > maxPayload {
		return 0, unix.EMSGSIZE
	}
	b := make([]byte, c.args[2])
	if err := c.readAll(c.args[1], b); err != nil {
		return 0, err
	}
	return s.transmit(c, socket, address, b, int(int32(c.args[3])))
}

// transmit sends a datagram to an address, or to the peer for none. Both were read from the caller's memory, which may
// have been that of another process if the caller has died.
func (s *server) transmit(c caller, socket int, address, b []byte, flags int) (int, error) {
	if !s.valid(c.id) {
		return 0, unix.ESRCH
	}
	if !s.valid(c.id) {
		return 0, unix.ESRCH
	}
	if flags&(unix.MSG_OOB|unix.MSG_MORE) != 0 { // with MSG_MORE, several calls make one datagram
		return 0, unix.EOPNOTSUPP
	}
	d := &datagram{socket: socket, b: b}
	var err error
	if address != nil {
		if d.to, err = addressOf(address); err != nil {
			return 0, err
		}
	}
	if d.inode, err = inodeOf(socket); err != nil {
		return 0, err
	}
	f, ok := s.inet.kept.flow(d.inode)
	switch {
	case address != nil && d.to.Port() == 0:
		return 0, unix.EINVAL
	case !ok, address != nil && s.inet.nowhere(d.to): // no socket for UDP has a port here
		return 0, unix.ECONNREFUSED
	}
	d.flow = f
	return len(b), s.deliver(c, d, flags)
}

// deliver sends a datagram, and waits for room unless MSG_DONTWAIT is among the flags of the call.
func (s *server) deliver(c caller, d *datagram, flags int) error {
	for {
		err := s.attemptWith(c, d.socket, unix.POLLOUT, flags, func() error {
			if !d.flow.tryTake() {
				return errOther
			}
			defer d.flow.leave()
			return s.send(d)
		})
		if !errors.Is(err, errOther) {
			return err
		}
		err = s.sendOther(c, d)
		if !errors.Is(err, unix.EAGAIN) || flags&unix.MSG_DONTWAIT != 0 {
			return err
		}
	}
}

// errOther means that a datagram is not for the peer of its socket, or that another call may be about to change it.
var errOther = errors.New("the socket has another peer")

// send sends a datagram to the peer, and never waits. The calling function has the turn.
func (s *server) send(d *datagram) error {
	e, _ := s.inet.names.get(d.inode)
	to := d.to
	if !to.IsValid() {
		to = e.peer
	}
	same := e.peer == to || e.peer.Port() == dns && to.Port() == dns // the entrance answers for every resolver
	switch {
	case !d.to.IsValid() && !e.connected:
		return unix.EDESTADDRREQ
	case !e.peer.IsValid(), !same && !e.connected:
		return errOther
	case !same:
		return unix.EISCONN
	case e.peer != to:
		e.peer = to
		d.flow.rename(func() { s.inet.names.set(d.inode, e) })
	}
	err := unix.Sendmsg(d.socket, d.b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return unix.ECONNREFUSED // the entrance has ended
	}
	return err
}

// errBusy means that a call waits for a place in server.connecting.
var errBusy = errors.New("too many calls wait for the entrance")

// sendOther sends a datagram after its address has become the peer of the socket.
func (s *server) sendOther(c caller, d *datagram) error {
	if !c.slot.move(s.connecting) { // this may take longer
		return errBusy
	}
	w := patience(c)
	if errno := w.enter(d.flow.turn); errno != 0 {
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
