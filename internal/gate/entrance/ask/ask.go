// Package ask is the message by which the init of a sandbox without a network stack asks the entrance of the sandbox
// (package entrance) for a connection, and the entrance's answer.
//
// Init connects a Unix socket to a listener of the entrance: a SOCK_STREAM socket for TCP, a SOCK_SEQPACKET socket for
// UDP. It sends one header on the connection, in one message, with one descriptor (SCM_RIGHTS): the end of a pipe to
// write. Everything after the header belongs to the connection that the header asks for. On the pipe, the entrance
// writes one status and closes it; a pipe that ends without a status means that the connection was refused.
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
	HeaderSize = 20
	// StatusSize is the size of a status, in bytes.
	StatusSize = 4

	version = 1
	// maxErrno is the greatest number of an error of the kernel.
	maxErrno = 4095
)

// Header returns the header that asks for a connection to an address: the version, a zero byte, the port and the
// address, both in network order, and IPv4 as ::ffff:a.b.c.d. A zone is left out.
func Header(to netip.AddrPort) [HeaderSize]byte {
	h := [HeaderSize]byte{version}
	binary.BigEndian.PutUint16(h[2:], to.Port())
	a := to.Addr().As16()
	copy(h[4:], a[:])
	return h
}

// ParseHeader returns the address in a header. The error is of kind Invalid.
func ParseHeader(b []byte) (netip.AddrPort, error) {
	if len(b) != HeaderSize || b[0] != version || b[1] != 0 {
		return netip.AddrPort{}, fault.New(fault.Invalid, "invalid header of a connection: % x", b[:min(len(b), HeaderSize)])
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[4:])).Unmap(), binary.BigEndian.Uint16(b[2:])), nil
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
