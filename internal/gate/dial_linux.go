//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// hostDial is the default of Options.Dial.
func (g *Gate) hostDial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	own, err := isOwn(to.Addr())
	if err != nil {
		return nil, err
	}
	if own && g.current().Decide(Request{Proto: Proto(network), Addr: to.Addr(), Port: to.Port()}).Verdict != Allow {
		return nil, fault.New(fault.Denied, "%v is an address of the host itself", to.Addr())
	}
	var d net.Dialer
	if network == "tcp" {
		// A host that is near has answered when connect(2) returns, though that says that it is
		// underway. The Dialer would wait to be woken up; called again, it tells.
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				_ = unix.Connect(int(fd), socketAddress(to)) // what it gives, the Dialer is given again
			})
		}
	}
	return d.DialContext(ctx, network, to.String())
}

// isOwn reports whether addr is an address of this host, where services listen that
// trust whoever reaches them from within. No packet is sent: the kernel is asked from
// which address it would send to addr.
func isOwn(addr netip.Addr) (bool, error) {
	family := unix.AF_INET6
	if addr.Unmap().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	// As the Dialer has it: else there is no answer for the broadcast address of a network.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
		return false, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Connect(fd, socketAddress(netip.AddrPortFrom(addr, 9))); err != nil {
		return false, os.NewSyscallError("connect", err)
	}
	switch local, err := unix.Getsockname(fd); a := local.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr) == addr.Unmap(), err
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr) == addr, err
	default:
		return true, os.NewSyscallError("getsockname", err)
	}
}

// socketAddress is how the kernel is given an address. to has no zone (never).
func socketAddress(to netip.AddrPort) unix.Sockaddr {
	if a := to.Addr().Unmap(); a.Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}
