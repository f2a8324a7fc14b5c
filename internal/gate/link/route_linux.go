//go:build linux && (amd64 || arm64)

package link

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Route describes a connected socket whose route is looked up: policy rules may depend on the protocol and the ports
// (ip-rule(8)).
type Route struct {
	Network  string // "tcp" or "udp"
	FromPort uint16 // 0 if the socket is not bound yet
	To       netip.AddrPort
}

// Kind returns the type of the route, an RTN_ constant of rtnetlink(7), in the calling thread's network namespace. No
// packet is sent. If there is no route, or one that discards, the error has the errno that connect(2) would return.
//
// The preferred source of a route does not tell its type: the local route of a secondary address has the primary as
// its source (fib_add_ifaddr of the kernel).
func (r Route) Kind() (uint8, error) {
	s, err := newRTSocket()
	if err != nil {
		return 0, err
	}
	defer s.close()
	s.seq++
	m := r.request(s.seq)
	if err := unix.Sendto(s.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("request a route: %w", err)
	}
	// The kernel queues its reply before sendto(2) returns (netlink_rcv_skb), so there is no wait. MSG_TRUNC returns
	// the full length of a reply that does not fit.
	buf := make([]byte, 8192)
	n, from, err := unix.Recvfrom(s.fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
	if err != nil {
		return 0, fmt.Errorf("read a route: %w", err)
	}
	if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 || n > len(buf) {
		return 0, fmt.Errorf("read a route: not a whole reply of the kernel: %w", unix.EBADMSG)
	}
	return routeKind(buf[:n], s.seq, family(r.To.Addr().Unmap()))
}

// request returns an RTM_GETROUTE message: struct rtmsg and its attributes.
func (r Route) request(seq uint32) []byte {
	to := r.To.Addr().Unmap()
	fixed := make([]byte, 12)
	fixed[0], fixed[1] = family(to), byte(to.BitLen())
	m := newMessage(unix.RTM_GETROUTE, 0, fixed...)
	m.attr(unix.RTA_DST, to.AsSlice()...)
	protocol := byte(unix.IPPROTO_TCP)
	if r.Network == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	m.attr(unix.RTA_IP_PROTO, protocol)
	m.attr(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, r.To.Port())...)
	if r.FromPort != 0 {
		m.attr(unix.RTA_SPORT, binary.BigEndian.AppendUint16(nil, r.FromPort)...)
	}
	binary.LittleEndian.PutUint32(m.b, uint32(len(m.b)))
	binary.LittleEndian.PutUint32(m.b[8:], seq)
	return m.b
}

// routeKind parses the reply to the request seq. Anything but exactly one route of that family is an error.
func routeKind(b []byte, seq uint32, family uint8) (uint8, error) {
	const rtmsg = 12
	if len(b) < nlHeader+4 || binary.LittleEndian.Uint32(b[8:]) != seq {
		return 0, fmt.Errorf("read a route: not the reply to the request: %w", unix.EBADMSG)
	}
	size := binary.LittleEndian.Uint32(b)
	if size < nlHeader+4 || uint64(size) > uint64(len(b)) {
		return 0, fmt.Errorf("read a route: a short reply: %w", unix.EBADMSG)
	}
	switch kind := binary.LittleEndian.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		code := int32(binary.LittleEndian.Uint32(b[nlHeader:]))
		if code >= 0 {
			return 0, fmt.Errorf("read a route: an acknowledgement without a route: %w", unix.EBADMSG)
		}
		return 0, fmt.Errorf("request a route: %w", unix.Errno(-code))
	case kind != unix.RTM_NEWROUTE || size < nlHeader+rtmsg || b[nlHeader] != family:
		return 0, fmt.Errorf("read a route: a reply of another kind: %w", unix.EBADMSG)
	}
	return b[nlHeader+7], nil // rtm_type
}
