//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The entrance learns from the first message of a connection where it leads: a header, with the end of a pipe to write
// as its one descriptor. To the pipe the entrance writes the errno of its dial, in little endian; 0 means connected.
const (
	headerSize    = 20
	headerVersion = 1
	statusSize    = 4
)

// header encodes the header for an address.
func header(to netip.AddrPort) []byte {
	b := make([]byte, 4, headerSize)
	b[0] = headerVersion
	binary.BigEndian.PutUint16(b[2:], to.Port())
	address := to.Addr().As16()
	return append(b, address[:]...)
}

// requestDial sends the header on a socket that is connected to the entrance, and returns the end of the pipe to read.
// It never waits: the caller has the socket too, and may have filled it.
func requestDial(socket int, to netip.AddrPort) (status int, err error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, err
	}
	defer unix.Close(pipe[1])
	n, err := unix.SendmsgN(socket, header(to), unix.UnixRights(pipe[1]), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err == nil && n < headerSize {
		err = unix.EAGAIN
	}
	if err != nil {
		unix.Close(pipe[0])
		return -1, err
	}
	return pipe[0], nil
}

// statusOf decodes what the entrance has written.
func statusOf(b []byte) unix.Errno {
	e := binary.LittleEndian.Uint32(b)
	if e > maxErrno {
		return unix.ECONNREFUSED
	}
	return unix.Errno(e)
}

// maxErrno is MAX_ERRNO of the kernel: a higher value would not be an error for the caller.
const maxErrno = 4095
