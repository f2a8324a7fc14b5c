//go:build linux && (amd64 || arm64)

package gate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// front filters packets between the link and the network stack. It passes only whole TCP and UDP packets without
// options or extensions, from the sandbox's own addresses to addresses of possible hosts. It answers or drops
// everything else itself: the stack learns no neighbours, reassembles no fragments and accepts no routers.
type front struct {
	nested.Endpoint
	gate     *Gate
	fd       int
	ethernet bool // packets have a link header, and the sandbox has a neighbour

	stack stack.NetworkDispatcher // receives packets after open
}

// maxEcho is the longest echo request that is answered.
const maxEcho = 4096

// Capabilities returns those of the link, without address resolution: both hardware addresses are known.
func (f *front) Capabilities() stack.LinkEndpointCapabilities {
	return f.Endpoint.Capabilities() &^ stack.CapabilityResolutionRequired
}

// Attach sets the stack that receives packets after open, or with nil stops reading.
func (f *front) Attach(to stack.NetworkDispatcher) {
	if f.stack = to; to == nil {
		f.Endpoint.Attach(nil)
	}
}

// open starts reading. Attach does not: the stack would drop what is read before its interface is enabled.
func (f *front) open() { f.Endpoint.Attach(f.stack) }

// AddHeader adds a link header with the sandbox's address.
func (f *front) AddHeader(pkt *stack.PacketBuffer) {
	if !f.ethernet {
		return
	}
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: link.GateMAC, DstAddr: link.BoxMAC, Type: pkt.NetworkProtocolNumber,
	})
}

// DeliverLinkPacket does nothing: no packet sockets are in use.
func (f *front) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// DeliverNetworkPacket filters one packet from the sandbox.
func (f *front) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	pass := false
	switch proto {
	case header.IPv4ProtocolNumber:
		pass = f.ip4(pkt)
	case header.IPv6ProtocolNumber:
		pass = f.ip6(pkt)
	case header.ARPProtocolNumber: // of Ethernet only
		f.arp(pkt)
	default:
		f.gate.counts.frames.Add(1)
	}
	if pass {
		f.Endpoint.DeliverNetworkPacket(proto, pkt)
	}
}

// whole returns the first n bytes of a packet.
func whole(pkt *stack.PacketBuffer, n int) []byte {
	b, ok := pkt.Data().PullUp(n)
	if !ok {
		return nil
	}
	return b
}

// ip4 reports whether an IPv4 packet may pass to the stack.
func (f *front) ip4(pkt *stack.PacketBuffer) bool {
	h := whole(pkt, header.IPv4MinimumSize)
	if h == nil || h[0]>>4 != 4 {
		f.gate.counts.frames.Add(1)
		return false
	}
	src, dst := netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
	size := int(binary.BigEndian.Uint16(h[2:]))
	switch {
	case dst.IsMulticast() || dst == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		if h[9] == unix.IPPROTO_UDP { // service discovery and the like
			f.gate.drop(UDP, dst, "multicast and broadcast are not supported")
		} else {
			f.gate.counts.frames.Add(1) // includes the kernel's own reports
		}
		return false
	case src != link.Box4():
		f.gate.drop(protocol(h[9]), dst, "the source address of the packet is not the sandbox's")
		return false
	case dst.IsLoopback() || dst.IsUnspecified():
		f.gate.drop(protocol(h[9]), dst, "the destination of the packet is not a host")
		return false
	case h[0]&15 != 5:
		f.gate.drop(protocol(h[9]), dst, "the packet has IP options")
		return false
	case binary.BigEndian.Uint16(h[6:])&0x3fff != 0:
		f.gate.drop(protocol(h[9]), dst, "the packet is a fragment")
		return false
	case size < header.IPv4MinimumSize || size > pkt.Data().Size():
		f.gate.counts.frames.Add(1)
		return false
	}
	switch h[9] {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		return true
	case unix.IPPROTO_ICMP:
		f.icmp4(pkt, dst, size)
	default:
		f.gate.drop(protocol(h[9]), dst, "only TCP, UDP and ICMP echo are supported")
	}
	return false
}

// ip6 reports whether an IPv6 packet may pass to the stack.
func (f *front) ip6(pkt *stack.PacketBuffer) bool {
	h := whole(pkt, header.IPv6MinimumSize)
	if h == nil || h[0]>>4 != 6 {
		f.gate.counts.frames.Add(1)
		return false
	}
	src, dst := netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40]))
	size := header.IPv6MinimumSize + int(binary.BigEndian.Uint16(h[4:]))
	switch {
	case h[6] == unix.IPPROTO_ICMPV6 && size <= pkt.Data().Size():
		f.icmp6(pkt, src, dst, size)
		return false
	case h[6] == unix.IPPROTO_ROUTING:
		f.gate.drop(protocol(h[6]), dst, "the packet has a routing header, so this address is perhaps not its last")
		return false
	case dst.IsMulticast():
		if h[6] == unix.IPPROTO_ICMPV6 || h[6] == unix.IPPROTO_HOPOPTS && isReport(pkt) {
			f.gate.counts.frames.Add(1) // includes the kernel's own reports
		} else {
			f.gate.drop(protocol(h[6]), dst, "multicast and broadcast are not supported")
		}
		return false
	case src != link.Box6():
		f.gate.drop(protocol(h[6]), dst, "the source address of the packet is not the sandbox's")
		return false
	case dst.IsLoopback() || dst.IsUnspecified() || dst.Is4In6():
		f.gate.drop(protocol(h[6]), dst, "the destination of the packet is not a host")
		return false
	case size > pkt.Data().Size():
		f.gate.counts.frames.Add(1)
		return false
	case h[6] == unix.IPPROTO_TCP, h[6] == unix.IPPROTO_UDP:
		return true
	}
	f.gate.drop(protocol(h[6]), dst, "only TCP, UDP and ICMP echo without extension headers are supported")
	return false
}

// isReport reports whether an IPv6 packet with hop-by-hop options is one that a kernel sends by itself about its
// multicast groups (MLD). The filter of link.Open drops most of them; a Pair has no filter.
func isReport(pkt *stack.PacketBuffer) bool {
	b := whole(pkt, header.IPv6MinimumSize+9)
	if b == nil || b[40] != unix.IPPROTO_ICMPV6 || b[41] != 0 || [4]byte(b[42:46]) != [4]byte{5, 2, 0, 0} {
		return false
	}
	return b[48] == 131 || b[48] == 132 || b[48] == 143
}

// send writes a packet to the sandbox. If there is no room, it is lost, as on any link.
func (f *front) send(proto tcpip.NetworkProtocolNumber, payload []byte) {
	var frame []byte
	if f.ethernet {
		frame = make([]byte, header.EthernetMinimumSize, header.EthernetMinimumSize+len(payload))
		header.Ethernet(frame).Encode(&header.EthernetFields{SrcAddr: link.GateMAC, DstAddr: link.BoxMAC, Type: proto})
	}
	if err := unix.Sendmsg(f.fd, append(frame, payload...), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		f.gate.counts.frames.Add(1)
	}
}

// arp answers ARP requests for the gate, the only neighbour.
func (f *front) arp(pkt *stack.PacketBuffer) {
	b := whole(pkt, header.ARPSize)
	gw := link.Gate4().As4()
	if b == nil || string(b[:8]) != "\x00\x01\x08\x00\x06\x04\x00\x01" || [4]byte(b[24:28]) != gw {
		f.gate.counts.frames.Add(1)
		return
	}
	r := append([]byte("\x00\x01\x08\x00\x06\x04\x00\x02"+link.GateMAC), gw[:]...)
	f.send(header.ARPProtocolNumber, append(r, b[8:18]...))
}

// icmp4 answers an echo request if the policy allows its destination.
func (f *front) icmp4(pkt *stack.PacketBuffer, dst netip.Addr, size int) {
	b := whole(pkt, min(size, maxEcho+1))
	const at = header.IPv4MinimumSize
	if size > maxEcho || len(b) < at+8 || b[at] != 8 || b[at+1] != 0 || !f.gate.echo(dst) {
		f.gate.counts.frames.Add(1)
		return
	}
	r := append([]byte(nil), b[:size]...)
	copy(r[12:16], b[16:20])
	copy(r[16:20], b[12:16])
	r[8] = 64
	r[10], r[11], r[at], r[at+2], r[at+3] = 0, 0, 0, 0, 0
	binary.BigEndian.PutUint16(r[10:], sum(r[:at], 0))
	binary.BigEndian.PutUint16(r[at+2:], sum(r[at:], 0))
	f.send(header.IPv4ProtocolNumber, r)
}

// icmp6 answers neighbour solicitations for the gate, and echo requests as icmp4 does.
func (f *front) icmp6(pkt *stack.PacketBuffer, src, dst netip.Addr, size int) {
	b := whole(pkt, min(size, maxEcho+1))
	const at = header.IPv6MinimumSize
	if size > maxEcho || len(b) < at+8 || src != link.Box6() || b[at+1] != 0 {
		f.gate.counts.frames.Add(1)
		return
	}
	var body []byte
	from := dst
	switch {
	case f.ethernet && b[at] == 135 && b[7] == 255 && len(b) >= at+24 &&
		netip.AddrFrom16([16]byte(b[at+8:at+24])) == link.Gate6():
		// A neighbour advertisement (RFC 4861, 4.4): solicited, and the link address.
		from = link.Gate6()
		a := from.As16()
		body = append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, a[:]...)
		body = append(append(body, 2, 1), link.GateMAC...)
	case b[at] == 128 && !dst.IsMulticast() && f.gate.echo(dst):
		body = append([]byte(nil), b[at:size]...)
		body[0], body[2], body[3] = 129, 0, 0
	default:
		f.gate.counts.frames.Add(1)
		return
	}
	r := make([]byte, at, at+len(body))
	r[0], r[6], r[7] = 6<<4, unix.IPPROTO_ICMPV6, 255
	binary.BigEndian.PutUint16(r[4:], uint16(len(body)))
	f16, s16 := from.As16(), src.As16()
	copy(r[8:], f16[:])
	copy(r[24:], s16[:])
	pseudo := uint32(len(body)) + unix.IPPROTO_ICMPV6
	binary.BigEndian.PutUint16(body[2:], sum(append(append([]byte(nil), r[8:40]...), body...), pseudo))
	f.send(header.IPv6ProtocolNumber, append(r, body...))
}

// sum is the internet checksum (RFC 1071).
func sum(b []byte, s uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
