//go:build linux && (amd64 || arm64)

package entrance

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Sizes of reads: a connection that fills its buffer gets a larger one. segment is what one packet of the link carries
// besides the headers of IP and TCP, which are 100 bytes with all options: whole segments leave no rest for a packet of
// its own.
const (
	segment   = link.PairMTU - 100
	firstRead = 16 << 10
	smallRead = segment
	largeRead = 4 * segment
)

// orphanFor is how long a connection that the sandbox has closed may take to end, as in the kernel: tcp_fin_timeout.
const orphanFor = time.Minute

// serveStream connects a session by TCP and copies in both directions until both have ended, or one is broken.
func (e *Entrance) serveStream(s *session, r *request) {
	var wq waiter.Queue
	ep, err := e.dial(s, &wq, r)
	if err != nil {
		return
	}
	s.attach(ep)
	large := e.size(ep)
	defer e.release(large)
	ep.SocketOptions().SetDelayOption(false)
	in, most := gonet.NewTCPConn(&wq, ep), smallRead
	if large {
		most = largeRead
	}
	var down sync.WaitGroup
	down.Go(func() { s.copyIn(in, most) })
	s.copyOut(in, most)
	down.Wait()
	linger(ep, &wq)
}

// errRefused means that the session has its answer, and ends.
var errRefused = errors.New("the connection is refused")

// dial connects to an address until the sandbox closes the session, and answers.
func (e *Entrance) dial(s *session, wq *waiter.Queue, r *request) (tcpip.Endpoint, error) {
	ctx, cancel := context.WithCancel(e.done)
	defer cancel()
	var watch sync.WaitGroup
	watch.Go(func() {
		if awaitHangup(s.raw) == nil {
			cancel()
		}
	})
	ep, no := e.connect(ctx, tcp.ProtocolNumber, wq, r)
	err := s.SetReadDeadline(time.Unix(1, 0))
	watch.Wait()
	err = errors.Join(err, s.SetReadDeadline(time.Time{}))
	r.answer.answer(no)
	if err == nil && no != 0 {
		err = errRefused
	}
	if err != nil && ep != nil {
		ep.Abort()
		ep.Close()
	}
	return ep, err
}

// size sets the buffer sizes of a connection, and reports whether they are the large ones; release takes that back.
func (e *Entrance) size(ep tcpip.Endpoint) (large bool) {
	e.mu.Lock()
	if large = e.large < limit.FlowBuffers; large {
		e.large++
	}
	e.mu.Unlock()
	if !large {
		ep.SocketOptions().SetReceiveBufferSize(limit.FlowSmallBuffer, true)
		ep.SocketOptions().SetSendBufferSize(limit.FlowSmallBuffer, true)
	}
	return large
}

func (e *Entrance) release(large bool) {
	if large {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.large--
	}
}

// copyOut copies what the sandbox sends, and then its end. When the sandbox has closed the socket, the other direction
// has a limited time to end.
func (s *session) copyOut(in *gonet.TCPConn, most int) {
	err := transfer(in, s, most)
	if err == nil {
		err = in.CloseWrite()
	}
	if err != nil {
		s.cut()
		return
	}
	if awaitHangup(s.raw) == nil && in.SetReadDeadline(time.Now().Add(orphanFor)) != nil {
		s.cut()
	}
}

// copyIn copies what the sandbox receives, and then the end.
func (s *session) copyIn(in *gonet.TCPConn, most int) {
	err := transfer(s, in, most)
	if errors.Is(err, unix.EPIPE) && !s.hungUp() { // the sandbox does not read any more, which does not matter to TCP
		_, err = io.Copy(io.Discard, in)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // of copyOut: what was sent is still delivered
		return
	}
	if err == nil {
		err = s.CloseWrite()
	}
	if err != nil {
		s.cut()
	}
}

// transfer copies until the end of src, in buffers of at most most bytes.
func transfer(dst io.Writer, src io.Reader, most int) error {
	buf := make([]byte, firstRead)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n == len(buf) && n < most:
			buf = make([]byte, min(4*n, most))
		}
	}
}

// linger closes an endpoint when the gate has taken the rest of its bytes. An endpoint that the gate does not end has
// orphanFor for that, and again as long as bytes are taken (tcp(7): an orphan that makes progress has no limit).
func linger(ep tcpip.Endpoint, wq *waiter.Queue) {
	defer ep.Close()
	entry, changed := waiter.NewChannelEntry(waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	late := time.NewTimer(orphanFor)
	defer late.Stop()
	for left := unsent(ep); ; {
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
			return
		}
		select {
		case <-changed:
		case <-late.C:
			now := unsent(ep)
			switch {
			case now == 0: // the gate has them all; when the host outside sends more, the stack answers with a reset
				return
			case now >= left:
				ep.Abort()
			}
			left = now
			late.Reset(orphanFor)
		}
	}
}

// unsent returns the number of bytes that the gate has not taken.
func unsent(ep tcpip.Endpoint) int {
	n, err := ep.GetSockOptInt(tcpip.SendQueueSizeOption)
	if err != nil {
		return 0
	}
	return n
}
