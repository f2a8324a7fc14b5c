//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Listening calls each for each socket of the sandbox that listens on a port, with its address and its inode. One that
// the sandbox has closed may be among them: then no process has it open.
func (n *Internet) Listening(each func(at netip.AddrPort, inode uint64)) {
	for inode, port := range n.kept.listening() {
		at := netip.IPv4Unspecified() // of a name that was forgotten
		if e, ok := n.names.get(inode); ok && e.local.Addr().IsValid() {
			at = e.local.Addr().Unmap()
		}
		each(netip.AddrPortFrom(at, port), inode)
	}
}

// Dial connects to a port of the sandbox, by IPv4 or else by IPv6, and returns the socket, which the caller closes. The
// server sees a client on loopback. If no process listens there, the error is a fault.NotFound. Dial does not wait for
// the server: if its queue is full, the error is a fault.Timeout.
func (n *Internet) Dial(port uint16) (int, error) {
	none := fault.New(fault.NotFound, "no process listens on port %d", port)
	n.kept.settle(port)
	if !slices.Contains(slices.Collect(maps.Values(n.kept.listening())), port) {
		return -1, none // although the kernel may still be closing the socket of a process that was killed
	}
	for _, to := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		fd, err := connectTo(n.port(netip.AddrPortFrom(to, port)))
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EAGAIN):
			return -1, fault.New(fault.Timeout, "the process that listens on port %d accepts no connection", port).
				WithHint("see what it does: coppice process ls NAME")
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED):
			return -1, fault.Wrap(err, "connect to port %d", port)
		}
		none.Err = err
	}
	return -1, none
}

// connectTo returns a socket that does not block, connected to a path.
func connectTo(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
