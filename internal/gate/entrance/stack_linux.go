//go:build linux && (amd64 || arm64)

package entrance

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/pipe"
	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	nic     = 1
	dnsPort = 53
)

// openStack creates a stack with the sandbox's interface at box, which it takes.
func (e *Entrance) openStack(box *os.File) (err error) {
	i := link.BoxInterface()
	none := func() {}
	e.link, e.box, err = pipe.New(box, i.MTU, none, func(error) {}) // without the gate, dials time out or are cancelled
	if err != nil {
		return err
	}
	e.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: limit.FlowBuffer, Max: limit.FlowBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: limit.FlowBuffer, Max: limit.FlowBuffer}
	wait, linger := tcpip.TCPTimeWaitTimeoutOption(time.Second), tcpip.TCPLingerTimeoutOption(10*time.Second)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &rcv, &snd, &wait, &linger} {
		if terr := e.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); terr != nil {
			return pipe.StackError("set TCP options", terr)
		}
	}
	if terr := e.stack.CreateNIC(nic, e.link); terr != nil {
		return pipe.StackError("create the interface", terr)
	}
	for _, p := range i.Addrs {
		a := tcpip.ProtocolAddress{Protocol: pipe.NetProto(p.Addr()),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(p.Addr().AsSlice()), PrefixLen: p.Bits()}}
		if terr := e.stack.AddProtocolAddress(nic, a, stack.AddressProperties{}); terr != nil {
			return pipe.StackError("add the addresses of the interface", terr)
		}
	}
	e.stack.SetRouteTable(
		[]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	return nil
}

// closeStack ends the stack and closes the link.
func (e *Entrance) closeStack() error {
	if e.stack != nil {
		for _, ep := range e.stack.RegisteredEndpoints() {
			ep.Abort()
		}
		e.link.Attach(nil) // the reader has ended when this returns
		e.stack.Destroy()
	}
	if e.box == nil {
		return nil
	}
	return e.box.Close()
}

// refused returns the error of a connection that the entrance refuses by itself; 0 for none. The gate drops packets to
// addresses that no host can have, and the stack would deliver packets to its own addresses to itself.
func refused(to netip.AddrPort) syscall.Errno {
	switch a := to.Addr(); {
	case to.Port() == 0, a == link.Box4(), a == link.Box6():
		return unix.ECONNREFUSED
	case a.IsLoopback(), a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return unix.ENETUNREACH
	}
	return 0
}

// connect connects an endpoint of the stack, and waits for the handshake of TCP until ctx ends.
func (e *Entrance) connect(ctx context.Context, proto tcpip.TransportProtocolNumber, wq *waiter.Queue,
	r *request) (tcpip.Endpoint, syscall.Errno) {
	to := r.to
	if no := refused(to); no != 0 {
		return nil, no
	}
	ep, terr := e.stack.NewEndpoint(proto, pipe.NetProto(to.Addr()), wq)
	if terr != nil {
		return nil, errnoOf(terr)
	}
	if r.from != 0 {
		_ = ep.Bind(tcpip.FullAddress{Port: r.from}) // if that port is not free, Connect takes another
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	terr = ep.Connect(tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()})
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ready:
			terr = ep.LastError()
		case <-ctx.Done():
			terr = &tcpip.ErrAborted{}
		}
	}
	if terr != nil {
		ep.Close()
		return nil, errnoOf(terr)
	}
	return ep, 0
}

// errnoOf returns the error of connect(2) for one of the stack.
func errnoOf(terr tcpip.Error) syscall.Errno {
	switch terr.(type) {
	case *tcpip.ErrTimeout:
		return unix.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return unix.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable:
		return unix.ENETUNREACH
	case *tcpip.ErrConnectionReset, *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return unix.ECONNRESET
	case *tcpip.ErrNoPortAvailable:
		return unix.EADDRNOTAVAIL
	}
	return unix.ECONNREFUSED
}
