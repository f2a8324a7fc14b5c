//go:build linux && (amd64 || arm64)

package link

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Pair returns the link between a network stack that is a program, box, and its gate: two connected sockets on which
// each write is one IP packet, without a link header. It needs no capability and no network namespace.
//
// The caller closes both. Neither is in non-blocking mode yet, so that a process which only holds one is not woken up
// by each packet. The user of a socket sets the mode, which applies to all its copies.
//
// When all copies of one end are closed, the other end reads EOF. A gate reports that as a failed link, so a copy of
// box must be held until the gate is closed. The link of gVisor (fdbased, which reads with recvmmsg) mistakes EOF for
// empty packets unless it is waiting at that moment, and reads them in a busy loop that cannot be stopped. So a copy of
// gate must be held for as long as the sandbox runs, even while no gate does.
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

// queueAll sets the queue limit of the Unix socket fd to the maximum. The queue is charged to the writer: the receive
// buffer has no effect.
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

// IsPair reports whether fd is an end of Pair, as opposed to the packet socket of Open.
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
