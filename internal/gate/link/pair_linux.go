//go:build linux && (amd64 || arm64)

package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Pair makes the wire between a network stack that is a program, box, and its gate: two
// connected sockets, of which each write is one IP packet, without a header of the link.
// It needs no capability and no network namespace.
//
// The caller closes both. Neither is in non-blocking mode yet, so that who merely holds
// one is not woken up by each packet; who uses it sets the mode, which is that of all its
// copies.
//
// When all copies of one end are closed, who reads the other finds its end. A gate tells
// of that as of a link that failed, so a copy of box is to be held until the gate is
// closed. The link of gVisor (fdbased, which reads with recvmmsg) takes the end for empty
// packets unless it waits for one at that moment, and asks for the next one without ever
// resting or being stopped; so a copy of gate is to be held for as long as the sandbox
// runs, whether the gate does or not.
func Pair() (box, gate *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fault.Wrap(err, "create the sandbox's network interface")
	}
	box, gate = os.NewFile(uintptr(fds[0]), "box"), os.NewFile(uintptr(fds[1]), "gate")
	for _, fd := range fds {
		if err := queueAll(fd); err != nil {
			box.Close()
			gate.Close()
			return nil, nil, fault.Wrap(err, "create the sandbox's network interface")
		}
	}
	return box, gate, nil
}

// queueAll lets as much of what is written to the unix socket fd wait to be read as the
// system allows. It is charged to who wrote it alone: the buffer for reading means nothing.
func queueAll(fd int) error {
	// Real root may go above the system's limit; others get the limit.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, limit.LinkQueue) == nil {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, limit.LinkQueue); err != nil {
		return fmt.Errorf("buffers: %w", err)
	}
	return nil
}

// IsPair reports whether packets come out of fd as they do of an end of Pair, and not as
// out of the packet socket of Open.
func IsPair(fd *os.File) (yes bool, err error) {
	raw, err := fd.SyscallConn()
	if err != nil {
		return false, err
	}
	var domain, kind int
	var asked error
	err = raw.Control(func(fd uintptr) {
		if domain, asked = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); asked == nil {
			kind, asked = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
		}
	})
	switch {
	case err != nil:
		return false, err
	case asked != nil:
		return false, asked
	case domain == unix.AF_UNIX && kind == unix.SOCK_SEQPACKET:
		return true, nil
	case domain == unix.AF_PACKET:
		return false, nil
	}
	return false, fmt.Errorf("invalid link: socket of family %d and type %d", domain, kind)
}
