//go:build linux && (amd64 || arm64)

package gate

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/pipe"
	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	nic     = 1
	dnsPort = 53
)

// start creates the network stack and all goroutines that run until Close.
func (g *Gate) start(ctx context.Context) error {
	if err := g.openLink(ctx); err != nil {
		return fault.Wrap(err, "read packets from the sandbox")
	}
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := g.configure(); err != nil {
		return err
	}
	tf := tcp.NewForwarder(g.stack, limit.FlowBuffer, g.bounds.Opening,
		func(r *tcp.ForwarderRequest) { g.serveTCP(ctx, r) })
	g.stack.SetTransportProtocolHandler(tcp.ProtocolNumber,
		func(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
			return !g.refusesTCP(id, pkt) && tf.HandlePacket(id, pkt)
		})
	uf := udp.NewForwarder(g.stack, func(r *udp.ForwarderRequest) bool { return g.serveUDP(ctx, r) })
	g.stack.SetTransportProtocolHandler(udp.ProtocolNumber, uf.HandlePacket)
	for _, at := range []netip.Addr{link.Gate4(), link.Gate6()} {
		c, err := g.listenDNS(at)
		if err != nil {
			return err
		}
		g.spawn(func() {
			<-ctx.Done()
			c.Close() //nolint:errcheck // always nil
		})
		g.spawn(func() { g.serveDNS(ctx, c) })
	}
	g.spawn(func() { g.tick(ctx) })
	// Last, so that packets only arrive when their handlers exist.
	if terr := g.stack.EnableNIC(nic); terr != nil {
		return pipe.StackError("enable the interface", terr)
	}
	g.link.open()
	return nil
}

// listenDNS binds the DNS port of one address of the gate.
func (g *Gate) listenDNS(at netip.Addr) (*gonet.UDPConn, error) {
	var wq waiter.Queue
	ep, terr := g.stack.NewEndpoint(udp.ProtocolNumber, pipe.NetProto(at), &wq)
	if terr != nil {
		return nil, pipe.StackError("serve DNS", terr)
	}
	full := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(at.AsSlice()), Port: dnsPort}
	if terr := ep.Bind(full); terr != nil {
		ep.Close()
		return nil, pipe.StackError("serve DNS", terr)
	}
	g.dns = append(g.dns, ep)
	return gonet.NewUDPConn(&wq, ep), nil
}

// openLink creates the link for the kind of g.fd. It does not read yet.
func (g *Gate) openLink(ctx context.Context) (err error) {
	var child stack.LinkEndpoint
	var fd int
	if g.ethernet {
		fd = int(g.fd.Fd()) // this makes the descriptor blocking, which fdbased undoes
		child, err = g.newChild(ctx, fd)
	} else {
		var p *pipe.Pipe
		p, g.fd, err = pipe.New(g.fd, g.mtu, func() { g.counts.frames.Add(1) }, func(err error) {
			close(g.unread)
			g.linkFailed(ctx, cmp.Or(err, errors.New("the peer is closed")).Error())
		})
		if err == nil {
			child, fd = p, p.FD()
		}
	}
	if err != nil {
		return err
	}
	g.link = &front{gate: g, fd: fd, ethernet: g.ethernet}
	g.child = child
	g.link.Init(child, g.link)
	return nil
}

// linkGrace is the time between the end of the link and its report. The keeper closes the gate of a sandbox that
// stops within it.
const linkGrace = 5 * time.Second

// linkFailed reports that nothing passes any more, unless the gate is closed within linkGrace: a sandbox that stops
// removes its interface, which is not a denial.
func (g *Gate) linkFailed(ctx context.Context, why string) {
	g.spawn(func() {
		select {
		case <-ctx.Done():
		case <-time.After(linkGrace):
			g.journal.deny(Event{Reason: "the sandbox's link failed, so all connections are blocked: " + why})
		}
	})
}

// newChild creates the link below the front. fdbased creates eventfds that it neither closes nor marks close-on-exec;
// no process is started before newChild marks them, and stop closes them.
func (g *Gate) newChild(ctx context.Context, fd int) (stack.LinkEndpoint, error) {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	before, err := inherited()
	if err != nil {
		return nil, err
	}
	child, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: uint32(g.mtu), EthernetHeader: true, Address: link.GateMAC,
		PacketDispatchMode: fdbased.RecvMMsg,
		// The link is memory; the sandbox's kernel leaves its checksums to the hardware.
		RXChecksumOffload: true,
		// Handle packets on the goroutine that reads them, so that none is in progress when it has ended.
		ProcessorsPerChannel: 1,
		PreConfigured:        true, IsPacketSocket: []bool{false}, // one socket: no fan-out
		ClosedFunc: func(terr tcpip.Error) { // when the only reader ends
			close(g.unread)
			if terr != nil {
				g.linkFailed(ctx, terr.String())
			}
		},
	})
	if err != nil { // gVisor returns the errno as text
		return nil, fault.New(fault.Unavailable, "create the sandbox's link").Because(err)
	}
	after, err := inherited()
	if err != nil {
		return nil, err
	}
	for _, fd := range after {
		if !slices.Contains(before, fd) {
			unix.CloseOnExec(fd)
			g.eventfds = append(g.eventfds, fd)
		}
	}
	return child, nil
}

// inherited returns the eventfds of this process that a child would inherit.
func inherited() (fds []int, err error) {
	const dir = "/proc/self/fd"
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // closed meanwhile, or close-on-exec
		}
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && to == "anon_inode:[eventfd]" {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

// spawn starts a goroutine that Close waits for. The gate must not be closed yet.
func (g *Gate) spawn(f func()) {
	if !g.begin() {
		return
	}
	go func() {
		defer g.end()
		f()
	}()
}

// configure creates the interface, disabled, with the gate's addresses. It also accepts packets to every other
// address, and answers from there.
func (g *Gate) configure() error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: limit.FlowBuffer, Max: limit.FlowBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: limit.FlowBuffer, Max: limit.FlowBuffer}
	retries, wait, linger := tcpip.TCPSynRetriesOption(3), tcpip.TCPTimeWaitTimeoutOption(time.Second),
		tcpip.TCPLingerTimeoutOption(10*time.Second)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &rcv, &snd, &retries, &wait, &linger} {
		if terr := g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); terr != nil {
			return pipe.StackError("set TCP options", terr)
		}
	}
	if terr := g.stack.CreateNICWithOptions(nic, g.link, stack.NICOptions{Disabled: true}); terr != nil {
		return pipe.StackError("create the interface", terr)
	}
	for at, bits := range map[netip.Addr]int{link.Gate4(): link.Bits4, link.Gate6(): link.Bits6} {
		a := tcpip.ProtocolAddress{Protocol: pipe.NetProto(at),
			AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFromSlice(at.AsSlice()), PrefixLen: bits}}
		if terr := g.stack.AddProtocolAddress(nic, a, stack.AddressProperties{}); terr != nil {
			return pipe.StackError("add the addresses of the interface", terr)
		}
	}
	if terr := g.stack.SetPromiscuousMode(nic, true); terr != nil {
		return pipe.StackError("accept packets to every address", terr)
	}
	if terr := g.stack.SetSpoofing(nic, true); terr != nil {
		return pipe.StackError("send packets from every address", terr)
	}
	g.stack.SetRouteTable(
		[]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	return nil
}

// stop ends every goroutine of the gate and the stack.
func (g *Gate) stop() {
	if g.stack == nil {
		g.wg.Wait()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.wg.Wait()
	}()
	// A handshake that has just started is not among the endpoints yet, so abort them repeatedly until no goroutine
	// can be waiting for one.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for waiting := true; waiting; {
		g.cutAll()
		for _, e := range g.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			waiting = false
		case <-again.C:
		}
	}
	g.sweepLingering(true)
	g.link.Attach(nil) // the reader has ended when this returns
	g.stack.Destroy()
	for _, fd := range g.eventfds {
		unix.Close(fd)
	}
}

// address converts an address of the stack.
func address(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return ip
}
