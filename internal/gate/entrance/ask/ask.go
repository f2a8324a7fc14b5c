// Package ask is the message by which the init of a sandbox without a network stack asks the entrance of the sandbox
// (package entrance) for a connection, and the entrance's answer.
//
// Init connects a Unix socket to a listener of the entrance, and sends one header on it, in one message with
// descriptors (SCM_RIGHTS). On the first, a pipe, the entrance writes one status and closes it; a pipe that ends
// without a status means that the connection was refused.
//
//	listener  type            descriptors             the socket that init has connected
//	Stream    SOCK_STREAM     the pipe                everything after the header belongs to the TCP connection
//	Messages  SOCK_SEQPACKET  the pipe, the far end   carries nothing more: the session for UDP lasts as long as it
//
// The far end is one of a pair of SOCK_SEQPACKET sockets, whose other end the sandbox has. Each message on it is a
// datagram. Init keeps a duplicate, and lets nothing more be queued before it ends a session by shutting down its side
// of the socket to the listener. The entrance sends on the datagrams that are queued, without waiting for anything, and
// no longer uses the far end when it closes its side: so init can ask for another session of the same pair, with
// another address. A session also ends, and the entrance closes its side, when the sandbox has closed its end of the
// pair.
//
// Init and package entrance import it; it imports fault, and nothing of a network stack.
package ask

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Stream and Messages are the names of the listeners in the directory of an entrance: of type SOCK_STREAM for TCP, and
// of type SOCK_SEQPACKET for UDP.
const (
	Stream   = "tcp"
	Messages = "udp"
)

const (
	// HeaderSize is the size of a header, in bytes.
	HeaderSize = 22
	// StatusSize is the size of a status, in bytes.
	StatusSize = 4

	version = 2
	// maxErrno is the greatest number of an error of the kernel.
	maxErrno = 4095
)

// Header returns the header that asks for a connection to an address: the version, a zero byte, the port and the
// address, both in network order, IPv4 as ::ffff:a.b.c.d, and the port from which the connection should come, 0 for
// any. A zone is left out. All sessions of a socket for UDP come from one port, so that a peer sees the same one again,
// and the gate the same flow; if it is not free, the entrance takes another.
func Header(to netip.AddrPort, from uint16) [HeaderSize]byte {
	h := [HeaderSize]byte{version}
	binary.BigEndian.PutUint16(h[2:], to.Port())
	a := to.Addr().As16()
	copy(h[4:], a[:])
	binary.BigEndian.PutUint16(h[20:], from)
	return h
}

// ParseHeader returns the address and the port in a header. The error is of kind Invalid.
func ParseHeader(b []byte) (to netip.AddrPort, from uint16, err error) {
	if len(b) != HeaderSize || b[0] != version || b[1] != 0 {
		return to, 0, fault.New(fault.Invalid, "invalid header of a connection: % x", b[:min(len(b), HeaderSize)])
	}
	to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:])).Unmap(), binary.BigEndian.Uint16(b[2:]))
	return to, binary.BigEndian.Uint16(b[20:]), nil
}

// Status returns the answer to a header: the error of connect(2), 0 if there is a connection.
func Status(no syscall.Errno) [StatusSize]byte {
	var s [StatusSize]byte
	binary.LittleEndian.PutUint32(s[:], uint32(no))
	return s
}

// ParseStatus returns the error in a status. The error of ParseStatus itself is of kind Invalid.
func ParseStatus(b []byte) (syscall.Errno, error) {
	if len(b) != StatusSize || binary.LittleEndian.Uint32(b) > maxErrno {
		return 0, fault.New(fault.Invalid, "invalid status of a connection: % x", b[:min(len(b), StatusSize)])
	}
	return syscall.Errno(binary.LittleEndian.Uint32(b)), nil
}
