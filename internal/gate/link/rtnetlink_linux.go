//go:build linux && (amd64 || arm64)

package link

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// rtMessage builds an rtnetlink request: header, a fixed part, and attributes, which may nest. Both supported
// architectures are little-endian, which is the byte order of rtnetlink.
type rtMessage struct{ b []byte }

const nlHeader = 16

func newMessage(kind, flags uint16, fixed ...byte) *rtMessage {
	m := &rtMessage{make([]byte, nlHeader, 256)}
	binary.LittleEndian.PutUint16(m.b[4:], kind)
	binary.LittleEndian.PutUint16(m.b[6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m.b = append(m.b, fixed...)
	return m
}

// attr appends an attribute.
func (m *rtMessage) attr(kind uint16, data ...byte) {
	m.b = binary.LittleEndian.AppendUint16(m.b, uint16(4+len(data)))
	m.b = binary.LittleEndian.AppendUint16(m.b, kind)
	m.b = append(m.b, data...)
	m.pad()
}

// text appends an attribute that is a string.
func (m *rtMessage) text(kind uint16, s string) { m.attr(kind, []byte(s)...) }

// number appends a 32-bit attribute.
func (m *rtMessage) number(kind uint16, n uint32) {
	m.attr(kind, binary.LittleEndian.AppendUint32(nil, n)...)
}

// nest appends an attribute whose value is written by inside.
func (m *rtMessage) nest(kind uint16, inside func()) {
	at := len(m.b)
	m.attr(kind)
	inside()
	binary.LittleEndian.PutUint16(m.b[at:], uint16(len(m.b)-at))
}

func (m *rtMessage) pad() {
	for len(m.b)%4 != 0 {
		m.b = append(m.b, 0)
	}
}

// rtSocket is an rtnetlink socket of the network namespace that it was created in.
type rtSocket struct {
	fd  int
	seq uint32
}

func newRTSocket() (*rtSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &rtSocket{fd: fd}, nil
}

func (s *rtSocket) close() { unix.Close(s.fd) }

// do sends one request and waits for the kernel's acknowledgement.
func (s *rtSocket) do(what string, m *rtMessage) error {
	s.seq++
	binary.LittleEndian.PutUint32(m.b, uint32(len(m.b)))
	binary.LittleEndian.PutUint32(m.b[8:], s.seq)
	if err := unix.Sendto(s.fd, m.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	buf := make([]byte, 8192)
	for {
		n, from, err := unix.Recvfrom(s.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 || n < nlHeader+4 {
			continue
		}
		if binary.LittleEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR || binary.LittleEndian.Uint32(buf[8:]) != s.seq {
			continue
		}
		if code := int32(binary.LittleEndian.Uint32(buf[nlHeader:])); code != 0 {
			return fmt.Errorf("%s: %w", what, unix.Errno(-code))
		}
		return nil
	}
}

// linkMessage returns the fixed part of messages about links: struct ifinfomsg.
func linkMessage(index int32, flags, change uint32) []byte {
	b := make([]byte, 4, 16)
	b = binary.LittleEndian.AppendUint32(b, uint32(index))
	b = binary.LittleEndian.AppendUint32(b, flags)
	return binary.LittleEndian.AppendUint32(b, change)
}
