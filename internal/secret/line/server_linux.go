package line

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// givePatience is how long a gate may leave a full buffer unread.
const givePatience = 10 * time.Second

// Server is the broker's end of a line. Give, Refuse and Drop are safe for concurrent use.
type Server struct {
	conn   *net.UnixConn
	buffer []byte
}

// Ask is a question of a gate. Of Host, Method and Path, only the first was checked, for its length.
type Ask struct {
	Grant, Host, Method, Path string
	Sign                      bool
	Data                      []byte // with Sign; empty: for the public key

	id uint64
}

// Accept reads the first message of a connection, which it owns, and returns its ticket. The caller then calls Begin or
// Reject. After an error, the connection is closed.
func Accept(conn *net.UnixConn, patience time.Duration) (s *Server, ticket []byte, err error) {
	s = &Server{conn: conn, buffer: make([]byte, maxText)}
	var m message
	if err = conn.SetReadDeadline(time.Now().Add(patience)); err == nil {
		m, _, err = receive(conn, s.buffer)
	}
	if err == nil {
		err = conn.SetReadDeadline(time.Time{})
	}
	if err == nil && m.Ticket == nil {
		err = errMessage()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return s, m.Ticket, nil
}

// Begin accepts the ticket.
func (s *Server) Begin() error { return s.now(message{OK: true}) }

// Reject refuses the ticket, and closes the connection.
func (s *Server) Reject(err error) {
	_ = s.now(not(theLine, 0, err)) // it is closed in any case
	s.Close()
}

// Next returns the next question. Any error ends the line. One goroutine at a time may call it.
func (s *Server) Next() (Ask, error) {
	m, data, err := receive(s.conn, s.buffer)
	if err != nil {
		return Ask{}, err
	}
	if m.Get+m.Sign == "" {
		return Ask{}, errMessage()
	}
	return Ask{Grant: m.Get + m.Sign, Host: m.Host, Method: m.Method, Path: m.Path, Sign: m.Sign != "",
		Data: slices.Clone(data), id: m.ID}, nil
}

// Give answers a question with a value, if valid returns true. It calls valid and writes the answer while it holds
// lock: a Drop by a holder of lock so reaches the gate after the answer, or makes valid return false. Give reports
// whether it was valid. It does not keep the value.
func (s *Server) Give(a Ask, v Value, lock sync.Locker, valid func() bool) (bool, error) {
	b, err := message{Is: a.Grant, ID: a.id, Until: v.Until, Version: v.Version}.encode(v.Bytes)
	if err != nil {
		return true, err
	}
	defer clear(b)
	raw, err := s.conn.SyscallConn()
	if err == nil {
		err = s.conn.SetWriteDeadline(time.Now().Add(givePatience))
	}
	if err != nil {
		return true, err
	}
	ok, sent := true, error(nil)
	err = raw.Write(func(fd uintptr) bool {
		lock.Lock()
		defer lock.Unlock()
		if ok, sent = valid(), nil; ok {
			sent = write(fd, b)
		}
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		s.Close()
	}
	return ok, err
}

// Refuse answers a question with an error: one of kind Unavailable, Timeout or NoSpace may succeed later.
func (s *Server) Refuse(a Ask, err error) error { return s.now(not(a.Grant, a.id, err)) }

// Drop makes the gate forget the value of a grant. It does not wait: it closes the line if the gate does not read.
func (s *Server) Drop(grant string) { _ = s.now(message{Drop: grant}) } // which closes the line

// Close closes the line.
func (s *Server) Close() { s.conn.Close() }

// retryAfter are the seconds after which a store that could not be reached may answer.
const retryAfter = 30

// not returns the message of a refusal.
func not(grant string, id uint64, err error) message {
	m := message{Not: grant, ID: id, Why: cut(err.Error(), maxWhy), Hint: cut(fault.HintOf(err), maxWhy)}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.NoSpace, fault.Cancelled:
		m.Retry = retryAfter
	}
	return m
}

// now writes a message without waiting. If there is no room for it, it closes the line.
func (s *Server) now(m message) error {
	b, err := m.encode(nil)
	if err != nil {
		return err
	}
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	sent := error(nil)
	if err = raw.Control(func(fd uintptr) { sent = write(fd, b) }); err == nil {
		err = sent
	}
	if err != nil {
		s.Close()
	}
	return err
}

// write sends one packet without waiting.
func write(fd uintptr, b []byte) error {
	for {
		err := unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
