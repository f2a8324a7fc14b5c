//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
)

// hostDial is the default of Options.Dial.
func (g *Gate) hostDial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if err := g.outside(network, netip.AddrPort{}, to); err != nil {
		return nil, err
	}
	var d net.Dialer
	if network == "tcp" {
		// A nearby host has answered by the time that connect(2) returns EINPROGRESS. The Dialer would wait for the
		// poller; a second connect(2) returns the result at once.
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) {
				_ = unix.Connect(int(fd), socketAddress(to)) // the Dialer gets the same result
			})
		}
	}
	c, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	// The routing table may have changed, and a rule may depend on the socket's local port. Nothing from the sandbox
	// has been sent yet.
	from, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err == nil {
		err = g.outside(network, from, to)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// outside returns an error unless the kernel routes to to a single host other than this one, because services of the
// host trust local connections. A policy that names the address allows it nevertheless. from is the zero AddrPort
// before the socket is connected.
func (g *Gate) outside(network string, from, to netip.AddrPort) error {
	what, err := refusedRoute(link.Route.Kind, network, from, to)
	if err != nil {
		return err
	}
	if what != "" && g.current().Decide(Request{Proto: Proto(network), Addr: to.Addr(), Port: to.Port()}).
		Verdict != Allow {
		return fault.New(fault.Denied, "%v is %s", to.Addr(), what)
	}
	return nil
}

// refusedRoute describes to, or returns "" if its route is unicast: no other route type, even if unknown here, leads
// to a single other host. kind is link.Route.Kind.
func refusedRoute(
	kind func(link.Route) (uint8, error), network string, from, to netip.AddrPort,
) (string, error) {
	const own = "an address of the host itself"
	if from.IsValid() && from.Addr().Unmap() == to.Addr().Unmap() {
		return own, nil
	}
	r := link.Route{Network: network, FromPort: from.Port(), To: to}
	got, err := kind(r)
	if err != nil {
		return "", err
	}
	if a := to.Addr().As16(); got == unix.RTN_UNICAST && string(a[:12]) == nat64 {
		// The translator may run on this host. A host without IPv4 has no route to the address.
		r.To = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[12:])), to.Port())
		if got, err = kind(r); errors.Is(err, unix.ENETUNREACH) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
	}
	switch got {
	case unix.RTN_UNICAST:
		return "", nil
	case unix.RTN_LOCAL:
		return own, nil
	case unix.RTN_BROADCAST:
		return "a broadcast address", nil
	case unix.RTN_ANYCAST:
		return "an anycast address of the host itself", nil
	case unix.RTN_MULTICAST:
		return "a multicast address", nil
	}
	return "an address to which the host has no route of type unicast", nil
}

// socketAddress converts an address for the kernel. to has no zone: never denies such addresses.
func socketAddress(to netip.AddrPort) unix.Sockaddr {
	if a := to.Addr().Unmap(); a.Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}
