//go:build linux && (amd64 || arm64)

package entrance

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// serveMessages copies datagrams in both directions until init ends the session or the sandbox closes its end. When it
// returns, nothing uses the far end or the port of the session.
func (e *Entrance) serveMessages(s *session, r *request) {
	var wq waiter.Queue
	ep, no := e.connect(e.done, udp.ProtocolNumber, &wq, r)
	if ep != nil {
		defer ep.Close()
		s.attach(ep)
	}
	if r.answer.answer(no); no != 0 {
		return
	}
	far, err := r.far.SyscallConn()
	if err != nil {
		return
	}
	in := gonet.NewUDPConn(&wq, ep)
	var watch, down sync.WaitGroup
	watch.Go(func() {
		s.awaitEnd()
		_ = in.SetWriteDeadline(time.Now().Add(queuedFor))
		_ = r.far.SetReadDeadline(time.Unix(1, 0))
	})
	down.Go(func() { receive(far, in, r.to) })
	send(in, far, mostOf(r.to))
	ep.Abort()
	down.Wait()
	_ = s.SetReadDeadline(time.Unix(1, 0))
	watch.Wait()
	r.far.Close()
}

// awaitEnd waits until init ends the session. It sends nothing after the header, so any message is an end too.
func (s *session) awaitEnd() {
	_ = s.raw.Read(func(fd uintptr) bool { return isSet(fd, unix.POLLIN|unix.POLLRDHUP) })
}

// mostOf returns the size of the longest datagram to an address: the gate refuses fragments.
func mostOf(to netip.AddrPort) int {
	if to.Addr().Is4() {
		return link.PairMTU - header.IPv4MinimumSize - header.UDPMinimumSize
	}
	return link.PairMTU - header.IPv6MinimumSize - header.UDPMinimumSize
}

// send sends each message of the sandbox as a datagram, until the sandbox closes its end. At the read deadline of far
// it sends those that are queued: a session ends only then. Longer ones than most are lost.
func send(in *gonet.UDPConn, far syscall.RawConn, most int) {
	buf := make([]byte, limit.Datagram)
	for {
		n, err := awaitMessage(far, buf[:most])
		switch {
		case errors.Is(err, io.EOF):
			_ = awaitHangup(far) // an error means that the session has ended
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			sendQueued(in, far, buf[:most])
			return
		case errors.Is(err, unix.EMSGSIZE):
			continue
		case err != nil:
			return
		}
		sendOne(in, buf[:n])
	}
}

const (
	// maxQueued bounds the messages that sendQueued sends: more than a queue has room for, unless somebody fills it
	// meanwhile, which init prevents.
	maxQueued = 1 << 16
	// queuedFor bounds how long the gate may take to accept them. The rest is lost, as on a network that is congested.
	queuedFor = time.Second
)

// sendQueued sends the messages that are queued.
func sendQueued(in *gonet.UDPConn, far syscall.RawConn, buf []byte) {
	for range maxQueued {
		var n int
		var err error
		if far.Control(func(fd uintptr) { n, err = readMessage(fd, buf) }) != nil {
			return
		}
		switch {
		case err == nil:
			sendOne(in, buf[:n])
		case !errors.Is(err, unix.EMSGSIZE):
			return
		}
	}
}

// sendOne sends a datagram, or loses it.
func sendOne(in *gonet.UDPConn, b []byte) {
	if _, err := in.Write(b); err != nil {
		// The error may be that of an earlier datagram, which the gate refused; only one of its own loses this one.
		_, _ = in.Write(b)
	}
}

// awaitMessage waits for a message and reads it, as readMessage does.
func awaitMessage(far syscall.RawConn, b []byte) (n int, err error) {
	waited := far.Read(func(fd uintptr) bool {
		n, err = readMessage(fd, b)
		return !errors.Is(err, unix.EAGAIN)
	})
	if waited != nil {
		return 0, waited
	}
	return n, err
}

// readMessage reads one message, or returns EAGAIN. It returns io.EOF at the end, and EMSGSIZE for a message longer
// than b. An empty message is an empty datagram, but hides what follows it when the other end has closed.
func readMessage(fd uintptr, b []byte) (n int, err error) {
	n, _, flags, _, err := unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
	switch {
	case err != nil:
		return 0, err
	case n == 0 && isSet(fd, unix.POLLRDHUP):
		return 0, io.EOF
	case flags&unix.MSG_TRUNC != 0:
		return 0, unix.EMSGSIZE
	}
	return n, nil
}

// receive passes datagrams of one host to the sandbox until the session is cut or has ended. It never waits for the
// sandbox: a datagram that finds no room is lost. Between bind and connect, the endpoint takes datagrams of any host,
// such as an earlier peer, whose flow through the gate has the same port.
func receive(far syscall.RawConn, in *gonet.UDPConn, host netip.AddrPort) {
	buf := make([]byte, limit.Datagram)
	for {
		n, from, err := in.ReadFrom(buf)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			continue // the gate refused an earlier datagram
		}
		if a, ok := from.(*net.UDPAddr); !ok || unmapped(a.AddrPort()) != unmapped(host) {
			continue
		}
		if far.Control(func(fd uintptr) {
			_ = unix.Sendmsg(int(fd), buf[:n], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		}) != nil {
			return
		}
	}
}

// unmapped returns an address without the form of IPv4 in IPv6.
func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
