//go:build linux && (amd64 || arm64)

package relay

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/unixsock"
)

// stream connects a local descriptor with one at the other end.
type stream struct {
	relay *Relay
	id    uint32   // guarded by relay.mu; 0 if the other end does not know the stream
	file  *os.File // non-blocking; closed when both directions have ended
	flow  flow     // seen from this end: flowOut is read here and sent

	taking sync.Mutex // held while bytes are read from the kernel
	read   int64      // bytes read since the other end has known the stream; guarded by taking
	put    int64      // bytes of those that were sent; guarded by taking

	mu       sync.Mutex
	changed  *sync.Cond
	credit   int    // bytes that this end may send
	queue    []byte // received, not yet written
	ended    bool   // nothing is received after queue
	sent     bool   // the direction from this end has ended
	got      bool   // the direction to this end has ended
	orphaned bool   // the terminal's command has exited: EIO means the end
	unheard  bool   // data that is read is discarded
}

func (r *Relay) newStream(id uint32, fd int, f flow) *stream {
	_ = unix.SetNonblock(fd, true)
	s := &stream{relay: r, id: id, file: os.NewFile(uintptr(fd), "stream"), flow: f, credit: window, sent: f == flowIn,
		got: f == flowOut}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// start starts to carry data.
func (s *stream) start() {
	if s.flow != flowIn {
		s.relay.pumps.Go(s.pump)
	}
	if s.flow != flowOut {
		s.relay.pumps.Go(s.drain)
	}
}

// pump reads from the descriptor and sends.
func (s *stream) pump() {
	buf := make([]byte, maxData)
	for {
		n, err := s.receive(buf)
		for sent := 0; sent < n; {
			k := s.allowed(n - sent)
			if k == 0 { // the other end has closed the stream
				s.over(&s.sent)
				return
			}
			s.relay.write(frameData, s, buf[sent:sent+k])
			sent += k
		}
		if err == nil {
			continue
		}
		// No process has the terminal open at the moment; one may open it again.
		if s.flow == flowTTY && errors.Is(err, unix.EIO) && !s.left() {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.relay.write(frameEnd, s, nil)
		s.over(&s.sent)
		// A socket may be half-closed. The outside must also learn that the client is gone.
		if s.flow == flowBoth && s.relay.inside && unixsock.AwaitHangup(s.file) {
			s.relay.write(frameCancel, s, nil)
			s.over(&s.got)
		}
		return
	}
}

// receive reads into buf.
func (s *stream) receive(buf []byte) (n int, err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	e := raw.Read(func(fd uintptr) bool {
		s.taking.Lock()
		defer s.taking.Unlock()
		for {
			if n, err = unix.Read(int(fd), buf); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		s.read += int64(max(n, 0))
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case e != nil:
		return 0, e
	case n == 0 && err == nil:
		err = io.EOF
	}
	return max(n, 0), err
}

// wrote counts bytes that were sent. The relay's writing is held, so that in a memory image the count matches the bytes
// that were sent.
func (s *stream) wrote(n int) {
	s.taking.Lock()
	defer s.taking.Unlock()
	s.put += int64(n)
}

// left reports whether the terminal's command has exited, or the terminal was hung up.
func (s *stream) left() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orphaned || s.got || s.sent
}

// orphan records that the terminal's command has exited.
func (s *stream) orphan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orphaned = true
}

// allowed waits until some of n bytes may be sent, and reserves them. It returns 0 if none may ever be sent.
func (s *stream) allowed(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.credit == 0 && !s.sent && !s.unheard {
		s.changed.Wait()
	}
	switch {
	case s.sent:
		return 0
	case s.unheard:
		return n
	}
	n = min(n, s.credit)
	s.credit -= n
	return n
}

// allow permits n more bytes to be sent.
func (s *stream) allow(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credit = int(min(int64(s.credit)+int64(n), window))
	s.changed.Broadcast()
}

// take receives bytes. It is an error if the other end exceeds its window.
func (s *stream) take(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got || s.ended {
		return nil
	}
	if len(s.queue)+len(b) > 2*window { // twice, since data in transit when the other end was replaced is not counted
		return errors.New("stream exceeds its window")
	}
	s.queue = append(s.queue, b...)
	s.changed.Broadcast()
	return nil
}

// end records that nothing more will be received.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

// cancel stops sending: a writer to this end's descriptor gets the error of a closed reader.
func (s *stream) cancel() {
	s.over(&s.sent)
	if s.flow == flowOut {
		_ = s.file.Close()
	}
}

// drain writes the received data to the descriptor.
func (s *stream) drain() {
	for {
		b, ok := s.next()
		if !ok {
			break
		}
		if _, err := s.file.Write(b); err != nil {
			s.relay.write(frameCancel, s, nil)
			break
		}
		s.relay.write(frameWindow, s, binary.BigEndian.AppendUint32(nil, uint32(len(b))))
	}
	switch s.flow {
	case flowBoth:
		if raw, err := s.file.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
	case flowTTY: // closing the input hangs up the terminal
		s.over(&s.sent)
	}
	s.over(&s.got)
}

// next waits for bytes to write. It returns false at their end.
func (s *stream) next() ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.ended && !s.got {
		s.changed.Wait()
	}
	if s.got || len(s.queue) == 0 {
		return nil, false
	}
	b := s.queue
	s.queue = nil
	return b, true
}

// over ends a direction. With the second one, it closes the descriptor.
func (s *stream) over(direction *bool) {
	s.mu.Lock()
	*direction = true
	both := s.sent && s.got
	s.changed.Broadcast()
	s.mu.Unlock()
	if both {
		_ = s.file.Close()
		s.relay.forget(s)
	}
}

// abandon ends both directions at once.
func (s *stream) abandon() {
	s.mu.Lock()
	s.sent, s.got = true, true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.file.Close()
}

// outstanding returns how many bytes were written to this end's descriptor so far.
func (s *stream) outstanding() int64 {
	s.taking.Lock()
	defer s.taking.Unlock()
	n := 0
	if raw, err := s.file.SyscallConn(); err == nil { // on an error all was read
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return s.read + int64(n)
}

// control calls f with the terminal's descriptor.
func (s *stream) control(f func(fd int) error) (err error) {
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

// begin restarts the stream with another end, which knows it by another number.
func (s *stream) begin() {
	s.taking.Lock()
	s.read, s.put = s.read-s.put, 0
	s.taking.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.credit = window
	s.changed.Broadcast()
}

// mute discards all data that is read from now on, so that processes that write to the descriptor continue without a
// reader.
func (s *stream) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unheard = true
	s.changed.Broadcast()
}
