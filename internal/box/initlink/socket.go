//go:build linux

package initlink

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"
)

// headLen is the length of the head of a message, before its payload.
const headLen = 8

// socket is an end whose other end may be in another process.
type socket struct {
	fd int

	mu sync.Mutex // held while a message is written

	in  []byte // received bytes that were not yet returned
	fds []int
}

func (s *socket) shutdown() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

func (s *socket) finish() { _ = unix.Shutdown(s.fd, unix.SHUT_WR) }

func (s *socket) close() {
	_ = unix.Close(s.fd)
	Message{FDs: s.fds}.Close()
}

func (s *socket) give(m Message) error {
	defer m.Close()
	return s.pass(m)
}

func (s *socket) pass(m Message) error {
	if err := m.checkSize(); err != nil {
		return err
	}
	b := append(make([]byte, headLen, headLen+len(m.Payload)), m.Payload...)
	b[0], b[1] = byte(m.Kind), byte(len(m.FDs))
	binary.BigEndian.PutUint32(b[4:], uint32(len(m.Payload)))
	var oob []byte
	if len(m.FDs) > 0 {
		oob = unix.UnixRights(m.FDs...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(b) > 0 {
		n, err := unix.SendmsgN(s.fd, b, oob, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b, oob = b[n:], nil
	}
	return nil
}

func (s *socket) recv() (Message, error) {
	for {
		if len(s.in) >= headLen {
			n := int(binary.BigEndian.Uint32(s.in[4:]))
			nfd := int(s.in[1])
			if n > maxMessage || nfd > maxFDs {
				return Message{}, fmt.Errorf("message %q of %d bytes with %d descriptors is too large", s.in[0], n, nfd)
			}
			if len(s.in) >= headLen+n {
				if nfd > len(s.fds) {
					return Message{}, fmt.Errorf("message %q lost its descriptors", s.in[0])
				}
				m := Message{Kind: Kind(s.in[0]), Payload: append([]byte(nil), s.in[headLen:headLen+n]...),
					FDs: append([]int(nil), s.fds[:nfd]...)}
				s.in, s.fds = append([]byte(nil), s.in[headLen+n:]...), s.fds[nfd:]
				return m, nil
			}
		}
		if err := s.fill(); err != nil {
			return Message{}, err
		}
	}
}

func (s *socket) fill() error {
	var buf [8 << 10]byte
	var oob [32 + 4*maxFDs]byte // room for the header too
	n, oobn, flags, _, err := unix.Recvmsg(s.fd, buf[:], oob[:], unix.MSG_CMSG_CLOEXEC)
	switch {
	case err == unix.EINTR:
		return nil
	case err == unix.ECONNRESET: // the other end was closed with unread data
		return io.EOF
	case err != nil:
		return fmt.Errorf("receive a message: %w", err)
	case flags&unix.MSG_CTRUNC != 0:
		return fmt.Errorf("receive a message: descriptors were truncated (RLIMIT_NOFILE?)")
	case n == 0:
		return io.EOF
	}
	if oobn > 0 {
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return fmt.Errorf("receive a message: %w", err)
		}
		for _, m := range msgs {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				return fmt.Errorf("receive a message: %w", err)
			}
			s.fds = append(s.fds, fds...)
		}
	}
	s.in = append(s.in, buf[:n]...)
	return nil
}
