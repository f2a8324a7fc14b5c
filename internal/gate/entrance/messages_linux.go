//go:build linux && (amd64 || arm64)

package entrance

import (
	"errors"
	"io"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// serveMessages copies datagrams in both directions until the sandbox closes the session.
func (e *Entrance) serveMessages(s *session, to netip.AddrPort, answer *status) {
	var wq waiter.Queue
	ep, no := e.connect(e.done, udp.ProtocolNumber, &wq, to)
	if ep != nil {
		defer ep.Close()
		s.attach(ep)
	}
	if answer.answer(no); no != 0 {
		return
	}
	in := gonet.NewUDPConn(&wq, ep)
	var down sync.WaitGroup
	down.Go(func() { s.receive(in) })
	s.send(in, mostOf(to))
	s.cut()
	down.Wait()
}

// mostOf returns the size of the longest datagram to an address: the gate refuses fragments.
func mostOf(to netip.AddrPort) int {
	if to.Addr().Is4() {
		return link.PairMTU - header.IPv4MinimumSize - header.UDPMinimumSize
	}
	return link.PairMTU - header.IPv6MinimumSize - header.UDPMinimumSize
}

// send sends each message of the sandbox as a datagram, until the sandbox closes the socket. Longer ones than most are
// lost.
func (s *session) send(in *gonet.UDPConn, most int) {
	buf := make([]byte, limit.Datagram)
	for {
		n, err := s.readMessage(buf[:most])
		switch {
		case errors.Is(err, io.EOF):
			_ = s.awaitHangup() // an error means that the session was cut
			return
		case errors.Is(err, unix.EMSGSIZE):
			continue
		case err != nil:
			return
		}
		if _, err := in.Write(buf[:n]); err != nil {
			// The error may be that of an earlier datagram, which the gate refused; only one of its own loses this one.
			_, _ = in.Write(buf[:n])
		}
	}
}

// readMessage reads one message. It returns io.EOF at the end, and EMSGSIZE for a message longer than b. An empty
// message is an empty datagram, but hides what follows it when the other end has closed.
func (s *session) readMessage(b []byte) (n int, err error) {
	var flags int
	var ended bool
	waited := s.raw.Read(func(fd uintptr) bool {
		n, _, flags, _, err = unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
		ended = err == nil && n == 0 && isSet(fd, unix.POLLRDHUP)
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil:
		return 0, err
	case ended:
		return 0, io.EOF
	case flags&unix.MSG_TRUNC != 0:
		return 0, unix.EMSGSIZE
	}
	return n, nil
}

// receive passes datagrams to the sandbox until the session is cut. It never waits for the sandbox: a datagram that
// finds no room is lost.
func (s *session) receive(in *gonet.UDPConn) {
	buf := make([]byte, limit.Datagram)
	for {
		n, err := in.Read(buf)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			continue // the gate refused an earlier datagram
		}
		if err := s.raw.Control(func(fd uintptr) {
			err = unix.Sendmsg(int(fd), buf[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}); err != nil {
			return
		}
	}
}
