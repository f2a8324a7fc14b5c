//go:build linux && (amd64 || arm64)

package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/thread"
)

const (
	routerDev = "up0" // in the router's namespace

	// DefaultMTU is the maximum size of an IP packet, with room for the link header: fewer packets need fewer copies.
	DefaultMTU = 65520

	// MinMTU is the minimum that IPv6 requires.
	MinMTU = 1280
	// MaxMTU leaves room for the link header in the longest packet.
	MaxMTU = 65520

	vethInfoPeer = 1 // VETH_INFO_PEER of linux/veth.h
	addrGenNone  = 1 // IN6_ADDR_GEN_MODE_NONE
)

// Open creates the only interface of the network namespace netns, with address, routes and the gate as its only
// neighbour, and returns the packet socket for its packets. The other end is in a network namespace without
// processes, addresses and routes. When the socket is closed, the kernel removes that namespace and with it the
// interface, asynchronously.
//
// Open must be called before anything of the sandbox runs, since a process with CAP_NET_ADMIN there could interfere.
// The caller needs CAP_SYS_ADMIN and CAP_NET_ADMIN in its own user namespace and in the owner of netns; root of a
// user namespace has them over its children. Open stays in its own network namespace, and does not close netns. One
// thread of the process ends, which may kill a child that was started with Pdeathsig from a thread that no goroutine
// had locked.
func Open(netns *os.File, mtu int) (*os.File, error) {
	if mtu == 0 {
		mtu = DefaultMTU
	}
	if mtu < MinMTU || mtu > MaxMTU {
		return nil, fault.New(fault.Invalid, "invalid MTU %d", mtu).WithHint("must be %d to %d", MinMTU, MaxMTU)
	}
	var fd *os.File
	var err error
	thread.OnOwn(func() { fd, err = makeLink(int(netns.Fd()), mtu) })
	runtime.KeepAlive(netns)
	if err == nil {
		return fd, nil
	}
	e := fault.New(fault.Internal, "create the sandbox's network interface").Because(err)
	switch {
	case errors.Is(err, unix.EPERM):
		e.Kind = fault.Denied
		return nil, e.WithHint(
			"the daemon must be root of the user namespace that owns the sandbox's network; see: coppice system probe")
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EAFNOSUPPORT):
		e.Kind = fault.Unsupported
		return nil, e.WithHint("the kernel needs veth and packet sockets: modprobe veth af_packet")
	}
	return nil, e
}

// Dropped returns how many packets the kernel has dropped since the last call because the queue of fd, the packet
// socket of Open, was full. It is safe for concurrent use, and counts each packet once.
func Dropped(fd int) (int64, error) {
	st, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0, fmt.Errorf("packet socket: statistics: %w", err)
	}
	return int64(st.Drops), nil
}

// makeLink does the work of Open on a separate thread, which it leaves in netns.
func makeLink(netns, mtu int) (_ *os.File, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare the router's network namespace: %w", err)
	}
	// The socket is in the router's namespace and keeps it alive. With protocol 0 it receives nothing until it is
	// bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	index, err := makeVeth(fd, netns, mtu)
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return nil, fmt.Errorf("packet socket: ignore what it sends: %w", err)
	}
	// The kernel queues nothing for an interface that was set up before its peer until it has noticed the carrier, up
	// to a second later, and drops what is sent meanwhile.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return nil, fmt.Errorf("packet socket: send without a queue: %w", err)
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		// Real root may go above the system's limit; others get the limit.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], limit.LinkQueue) != nil {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], limit.LinkQueue); err != nil {
				return nil, fmt.Errorf("packet socket: buffers: %w", err)
			}
		}
	}
	filter := withoutReports
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return nil, fmt.Errorf("packet socket: filter: %w", err)
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(index)}); err != nil {
		return nil, fmt.Errorf("packet socket: bind: %w", err)
	}
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the sandbox's network namespace: %w", err)
	}
	if err := configureBox(); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "gate"), nil
}

// withoutReports is a filter of the packet socket that drops the reports about multicast groups which the sandbox's
// kernel sends by itself (MLD, RFC 2710 and RFC 3810): an ICMPv6 message of type 131, 132 or 143 to a multicast group,
// after a hop-by-hop header of 8 bytes whose first option is a router alert (RFC 2711) of MLD. The gate answers none
// of them. Without them, nothing is received before a program of the sandbox uses the network. Everything else passes,
// to be denied and recorded. The offsets include the link header.
var withoutReports = [...]unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12}, // the protocol
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IPV6, Jf: 15},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
	{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 14 + 40 + 8 + 1, Jf: 13},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 6}, // its next header
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_HOPOPTS, Jf: 11},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 24}, // the first byte of its destination
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0xff, Jf: 9},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 14 + 40}, // the next header after the options, and their length
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6 << 8, Jf: 7},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 14 + 40 + 2}, // the first option
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: routerAlertMLD, Jf: 5},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 40 + 8}, // the type of the message
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 131, Jt: 2},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 132, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 143, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// routerAlertMLD is the hop-by-hop option of MLD: type 5, two bytes, value 0.
const routerAlertMLD = 0x05020000

// makeVeth creates the pair, with the sandbox's end created in netns (moving it there would take tens of milliseconds),
// and sets the router's end up.
func makeVeth(fd, netns, mtu int) (index int32, err error) {
	s, err := newRTSocket()
	if err != nil {
		return 0, err
	}
	defer s.close()
	m := newMessage(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, linkMessage(0, 0, 0)...)
	m.text(unix.IFLA_IFNAME, routerDev+"\x00")
	m.number(unix.IFLA_MTU, uint32(mtu))
	m.text(unix.IFLA_ADDRESS, GateMAC)
	m.nest(unix.IFLA_LINKINFO, func() {
		m.text(unix.IFLA_INFO_KIND, "veth")
		m.nest(unix.IFLA_INFO_DATA, func() {
			m.nest(vethInfoPeer, func() {
				m.b = append(m.b, linkMessage(0, 0, 0)...)
				m.text(unix.IFLA_IFNAME, boxDev+"\x00")
				m.number(unix.IFLA_MTU, uint32(mtu))
				m.text(unix.IFLA_ADDRESS, BoxMAC)
				// Datagrams that a program hands over in bulk (UDP_SEGMENT) come out one by one.
				m.number(unix.IFLA_GSO_MAX_SEGS, 1)
				m.number(unix.IFLA_NET_NS_FD, uint32(netns))
			})
		})
	})
	if err := s.do("create a veth pair", m); err != nil {
		return 0, err
	}
	if index, err = indexOf(fd, routerDev); err != nil {
		return 0, err
	}
	// Only the packet socket may answer here.
	if err := s.noAutoAddress(index); err != nil {
		return 0, err
	}
	return index, s.up(index)
}

// configureBox configures the sandbox's end. The calling thread is in its namespace.
func configureBox() error {
	s, err := newRTSocket()
	if err != nil {
		return err
	}
	defer s.close()
	index, err := indexOf(s.fd, boxDev)
	if err != nil {
		return err
	}
	lo, err := indexOf(s.fd, "lo")
	if err != nil {
		return err
	}
	if err := s.noAutoAddress(index); err != nil {
		return err
	}
	if err := s.up(lo); err != nil {
		return err
	}
	// The interface is set up first: an IPv6 address added before that is not ready until the kernel has noticed the
	// carrier.
	if err := s.up(index); err != nil {
		return err
	}
	if err := s.address(index, Box4(), Bits4); err != nil {
		return err
	}
	six := true
	switch err := s.address(index, Box6(), Bits6); {
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EACCES):
		six = false // the kernel has no IPv6, or none for new namespaces: then the sandbox has none either
	case err != nil:
		return err
	}
	if six {
		if err := s.localRoute(index, Box6()); err != nil {
			return err
		}
	}
	for _, gw := range []netip.Addr{Gate4(), Gate6()} {
		if gw.Is6() && !six {
			continue
		}
		if err := s.neighbour(index, gw); err != nil {
			return err
		}
		if err := s.defaultRoute(index, gw); err != nil {
			return err
		}
	}
	return nil
}

// indexOf finds an interface in the namespace of the socket fd.
func indexOf(fd int, name string) (int32, error) {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("index of %s: %w", name, err)
	}
	return int32(r.Uint32()), nil
}

// noAutoAddress prevents the kernel from giving the interface a link-local address. Without IPv6 it does nothing.
func (s *rtSocket) noAutoAddress(index int32) error {
	m := newMessage(unix.RTM_SETLINK, 0, linkMessage(index, 0, 0)...)
	m.nest(unix.IFLA_AF_SPEC, func() {
		m.nest(unix.AF_INET6, func() { m.attr(unix.IFLA_INET6_ADDR_GEN_MODE, addrGenNone) })
	})
	err := s.do("disable automatic addresses of an interface", m)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func (s *rtSocket) up(index int32) error {
	return s.do("bring up an interface", newMessage(unix.RTM_SETLINK, 0, linkMessage(index, unix.IFF_UP, unix.IFF_UP)...))
}

func (s *rtSocket) address(index int32, addr netip.Addr, bits byte) error {
	// struct ifaddrmsg. Duplicate address detection is unnecessary: nothing else on the link could have the address.
	fixed := binary.LittleEndian.AppendUint32([]byte{family(addr), bits, unix.IFA_F_NODAD, 0}, uint32(index))
	m := newMessage(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, fixed...)
	m.attr(unix.IFA_LOCAL, addr.AsSlice()...)
	m.attr(unix.IFA_ADDRESS, addr.AsSlice()...)
	return s.do("add the address "+addr.String(), m)
}

// neighbour adds the gate's hardware address as a permanent neighbour, so that it is never resolved.
func (s *rtSocket) neighbour(index int32, gw netip.Addr) error {
	fixed := binary.LittleEndian.AppendUint32([]byte{family(gw), 0, 0, 0}, uint32(index))
	fixed = append(fixed, unix.NUD_PERMANENT, 0, 0, 0) // struct ndmsg
	m := newMessage(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, fixed...)
	m.attr(unix.NDA_DST, gw.AsSlice()...)
	m.text(unix.NDA_LLADDR, GateMAC)
	return s.do("add the gate as neighbor", m)
}

func (s *rtSocket) defaultRoute(index int32, gw netip.Addr) error {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, // struct rtmsg
		family(gw), 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0)
	m.attr(unix.RTA_GATEWAY, gw.AsSlice()...)
	m.number(unix.RTA_OIF, uint32(index))
	return s.do("route to "+gw.String(), m)
}

// localRoute makes the sandbox accept packets to its own address at once. For an IPv6 address the kernel adds this
// route itself, but only when its work queue runs.
func (s *rtSocket) localRoute(index int32, addr netip.Addr) error {
	m := newMessage(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, // struct rtmsg
		unix.AF_INET6, 128, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_KERNEL, unix.RT_SCOPE_UNIVERSE, unix.RTN_LOCAL, 0, 0, 0, 0)
	m.attr(unix.RTA_DST, addr.AsSlice()...)
	m.number(unix.RTA_OIF, uint32(index))
	return s.do("let "+addr.String()+" be the sandbox", m)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
