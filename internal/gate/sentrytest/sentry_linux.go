//go:build linux && (amd64 || arm64)

// Package sentrytest provides the network stack of a sandbox under gVisor for tests, with the link, protocols and
// options of a sentry.
package sentrytest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

const nic = 1

// Sentry is a network stack of a sandbox. It is safe for concurrent use.
type Sentry struct{ stack *stack.Stack }

// New returns a stack that sends its packets to fd, an end of link.Pair. The caller owns fd and keeps it open until
// Close has returned.
func New(fd int, i link.Interface) (*Sentry, error) {
	s := stack.New(stack.Options{
		NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4,
			icmp.NewProtocol6},
		HandleLocal: true,
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack)
	s.SetTransportProtocolOption(tcp.ProtocolNumber, &moderate)
	eth0, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: uint32(i.MTU), PacketDispatchMode: fdbased.RecvMMsg,
		TXChecksumOffload: i.NoChecksums, RXChecksumOffload: i.NoChecksums,
	})
	if err != nil {
		return nil, err
	}
	if terr := s.CreateNICWithOptions(nic, eth0, stack.NICOptions{Name: i.Name, DeliverLinkPackets: true}); terr != nil {
		return nil, failed("create eth0", terr)
	}
	for _, p := range i.Addrs {
		a := tcpip.ProtocolAddress{Protocol: netProto(p.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}}
		if terr := s.AddProtocolAddress(nic, a, stack.AddressProperties{}); terr != nil {
			return nil, failed("add the address of eth0", terr)
		}
	}
	var routes []tcpip.Route
	for _, gw := range i.Gateways {
		to := header.IPv4EmptySubnet
		if gw.Is6() {
			to = header.IPv6EmptySubnet
		}
		routes = append(routes, tcpip.Route{Destination: to, Gateway: tcpip.AddrFromSlice(gw.AsSlice()), NIC: nic})
	}
	s.SetRouteTable(routes)
	return &Sentry{s}, nil
}

// Close stops the stack.
func (s *Sentry) Close() {
	s.stack.RemoveNIC(nic)
	s.stack.Destroy()
}

// DialContext is like net.Dialer.DialContext, but inside the sandbox. It also supports "ip4:icmp" and
// "ip6:ipv6-icmp".
func (s *Sentry) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if strings.HasPrefix(network, "ip") {
		host, port, err = addr, "0", nil
	}
	if err != nil {
		return nil, err
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		return nil, err
	}
	addrs, err := s.Resolver().LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		var c net.Conn
		if c, err = s.dialAddr(ctx, network, netip.AddrPortFrom(a.Unmap(), uint16(number))); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func (s *Sentry) dialAddr(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	full, proto := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()},
		netProto(to.Addr())
	number := udp.ProtocolNumber
	switch {
	case strings.HasPrefix(network, "tcp"):
		c, err := gonet.DialContextTCP(ctx, s.stack, full, proto)
		if err != nil {
			return nil, asKernel(err)
		}
		return c, nil
	case network == "ip4:icmp":
		number = icmp.ProtocolNumber4
	case network == "ip6:ipv6-icmp":
		number = icmp.ProtocolNumber6
	}
	var wq waiter.Queue
	e, terr := s.stack.NewEndpoint(number, proto, &wq)
	if terr != nil {
		return nil, failed("create a socket", terr)
	}
	if terr := e.Connect(full); terr != nil {
		return nil, failed("connect", terr)
	}
	c := gonet.NewUDPConn(&wq, e)
	// Unlike a kernel, gonet does not wake up a reader on an error.
	woken := waiter.NewFunctionEntry(waiter.EventErr, func(waiter.EventMask) { c.SetReadDeadline(time.Unix(1, 0)) })
	wq.EventRegister(&woken)
	return datagrams{c, e}, nil
}

// datagrams returns the errors that a kernel would return.
type datagrams struct {
	*gonet.UDPConn
	e tcpip.Endpoint
}

func (d datagrams) Read(b []byte) (int, error) {
	n, err := d.UDPConn.Read(b)
	if err != nil {
		if terr := d.e.LastError(); terr != nil {
			err = errors.New(terr.String())
		}
	}
	return n, asKernel(err)
}

func asKernel(err error) error {
	if err != nil && strings.Contains(err.Error(), "connection was refused") {
		return errors.Join(syscall.ECONNREFUSED, err)
	}
	return err
}

// Resolver returns a resolver that uses the servers of the sandbox's /etc/resolv.conf, from inside.
func (s *Sentry) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: s.DialContext}
}

func failed(what string, terr tcpip.Error) error { return errors.New(what + ": " + terr.String()) }

func netProto(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}
