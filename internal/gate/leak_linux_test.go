//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// ways are attempts to send a packet past the gate, by a program that has every capability in its own namespaces. Each
// returns what it achieved, which must be no more than a socket. The host that it must not reach is at Args[0], with a
// TCP port (Args[1]), a UDP port (Args[2]) and an abstract socket (Args[3]).
var ways = []struct {
	name string
	try  func(host netip.Addr, tcp, udp int, abstract string) error
}{
	{"tcp", func(h netip.Addr, tcp, _ int, _ string) error { return connectTo(unix.SOCK_STREAM, 0, h, tcp) }},
	{"mptcp", func(h netip.Addr, tcp, _ int, _ string) error {
		return connectTo(unix.SOCK_STREAM, unix.IPPROTO_MPTCP, h, tcp)
	}},
	{"sctp", func(h netip.Addr, tcp, _ int, _ string) error {
		return connectTo(unix.SOCK_STREAM, unix.IPPROTO_SCTP, h, tcp)
	}},
	{"udp sendto", func(h netip.Addr, _, udp int, _ string) error {
		return answered(unix.SOCK_DGRAM, 0, h, udp, []byte("x"))
	}},
	{"udplite", func(h netip.Addr, _, udp int, _ string) error {
		return answered(unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, h, udp, []byte("x"))
	}},
	{"udp sendmsg", func(h netip.Addr, _, udp int, _ string) error {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
			if err := unix.Sendmsg(fd, []byte("x"), nil, sockaddr(h, udp), 0); err != nil {
				return err
			}
			return receive(fd)
		})
	}},
	{"udp to a broadcast", func(h netip.Addr, _, udp int, _ string) error {
		return withSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error {
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			if err := unix.Sendto(fd, []byte("x"), 0, sockaddr(netip.MustParseAddr("255.255.255.255"), udp)); err != nil {
				return err
			}
			return receive(fd)
		})
	}},
	{"udp in fragments", func(h netip.Addr, _, udp int, _ string) error {
		exec.Command("ip", "link", "set", "eth0", "mtu", "1280").Run()
		defer exec.Command("ip", "link", "set", "eth0", "mtu", "65520").Run()
		return answered(unix.SOCK_DGRAM, 0, h, udp, make([]byte, 4000))
	}},
	{"fast open sendto", func(h netip.Addr, tcp, _ int, _ string) error {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
			return unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, sockaddr(h, tcp))
		})
	}},
	{"fast open connect", func(h netip.Addr, tcp, _ int, _ string) error {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
				return err
			}
			if err := unix.Connect(fd, sockaddr(h, tcp)); err != nil {
				return err
			}
			_, err := unix.Write(fd, []byte("x")) // sends the SYN
			return err
		})
	}},
	{"ping", func(h netip.Addr, _, _ int, _ string) error {
		return answered(unix.SOCK_RAW, unix.IPPROTO_ICMP, h, 0, []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1})
	}},
	{"raw ip", func(h netip.Addr, _, udp int, _ string) error {
		p := packet4(17, "127.0.0.1", h.String(), 0x30, 0x39, byte(udp>>8), byte(udp), 0, 9, 0, 0, 'x')
		return answered(unix.SOCK_RAW, unix.IPPROTO_RAW, h, 0, p)
	}},
	{"frames", func(h netip.Addr, tcp, udp int, _ string) error {
		return withSocket(unix.AF_PACKET, unix.SOCK_RAW, unix.ETH_P_ALL<<8, func(fd int) error {
			i, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			at := &unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6}
			for _, mac := range []string{link.GateMAC, "\xff\xff\xff\xff\xff\xff", link.BoxMAC} {
				for _, src := range []string{b4, g4, "127.0.0.1", h.String()} {
					for _, p := range [][]byte{
						packet4(17, src, h.String(), 0x30, 0x39, byte(udp>>8), byte(udp), 0, 9, 0, 0, 'x'),
						packet4(17, src, "127.0.0.1", 0x30, 0x39, byte(udp>>8), byte(udp), 0, 9, 0, 0, 'x'),
						packet4(4, src, g4, packet4(17, src, h.String(), 0x30, 0x39, byte(udp>>8), byte(udp), 0, 9, 0, 0, 'x')...),
					} {
						if err := unix.Sendto(fd, append([]byte(mac+link.BoxMAC+"\x08\x00"), p...), 0, at); err != nil {
							return err
						}
					}
				}
			}
			return errHarmless
		})
	}},
	{"routes and addresses by netlink", func(h netip.Addr, tcp, _ int, _ string) error {
		for _, c := range []string{"addr add " + h.String() + "/32 dev eth0", "link set eth0 address 02:11:22:33:44:55",
			"link set eth0 promisc on",
			"route replace default via 192.0.0.3 onlink dev eth0", "link add v0 type veth peer name v1",
			"route add table 100 default via 192.0.0.1"} {
			exec.Command("ip", strings.Fields(c)...).Run()
		}
		err := connectTo(unix.SOCK_STREAM, 0, h, tcp)
		for _, c := range []string{"addr del " + h.String() + "/32 dev eth0", "link set eth0 address 02:c0:99:1c:e0:02",
			"route replace default via 192.0.0.1 dev eth0"} {
			exec.Command("ip", strings.Fields(c)...).Run()
		}
		return err
	}},
	{"abstract socket", func(_ netip.Addr, _, _ int, name string) error {
		return withSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0,
			func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: name}) })
	}},
	{"AF_ALG", func(netip.Addr, int, int, string) error {
		return withSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0, func(int) error { return errHarmless })
	}},
	{"listen", func(netip.Addr, int, int, string) error {
		return withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
			if err := unix.Listen(fd, 1); err != nil {
				return err
			}
			return errHarmless // no host outside has a route to it
		})
	}},
	{"the host's loopback", func(_ netip.Addr, tcp, _ int, _ string) error {
		return connectTo(unix.SOCK_STREAM, 0, netip.MustParseAddr("127.0.0.1"), tcp)
	}},
	{"a race on the address", func(h netip.Addr, tcp, _ int, _ string) error {
		// The port flips between an allowed and a denied one.
		var sa unix.RawSockaddrInet4
		sa.Family, sa.Addr = unix.AF_INET, h.As4()
		port := (*[2]byte)(unsafe.Pointer(&sa.Port))
		binary.BigEndian.PutUint16(port[:], 80)
		var stop atomic.Bool
		var flip sync.WaitGroup
		flip.Go(func() {
			for !stop.Load() {
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&sa)),
					uint32(unix.AF_INET)|uint32(byte(tcp>>8))<<16|uint32(byte(tcp))<<24)
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&sa)), uint32(unix.AF_INET)|80<<24)
			}
		})
		defer flip.Wait()
		defer stop.Store(true)
		for range 300 {
			if err := withSocket(unix.AF_INET, unix.SOCK_STREAM, 0, func(fd int) error {
				if _, _, no := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)),
					unsafe.Sizeof(sa)); no != 0 {
					return no
				}
				peer, err := unix.Getpeername(fd)
				if p, ok := peer.(*unix.SockaddrInet4); err == nil && ok && p.Port != 80 {
					return nil
				}
				return errHarmless
			}); err == nil {
				return nil
			}
		}
		runtime.KeepAlive(&sa)
		return errHarmless
	}},
}

var errHarmless = errors.New("a socket, and no more")

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
}

func withSocket(family, kind, proto int, f func(fd int) error) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &unix.Timeval{Usec: 400000}); err != nil {
			return err
		}
	}
	return f(fd)
}

func connectTo(kind, proto int, h netip.Addr, port int) error {
	return withSocket(unix.AF_INET, kind, proto, func(fd int) error { return unix.Connect(fd, sockaddr(h, port)) })
}

func answered(kind, proto int, h netip.Addr, port int, b []byte) error {
	return withSocket(unix.AF_INET, kind, proto, func(fd int) error {
		if err := unix.Sendto(fd, b, 0, sockaddr(h, port)); err != nil {
			return err
		}
		return receive(fd)
	})
}

func receive(fd int) error {
	_, _, err := unix.Recvfrom(fd, make([]byte, 100), 0)
	return err
}

// leak is the order leak HOST TCP UDP ABSTRACT: it tries all ways and returns their results.
func leak(a []string, _ []byte) ([]byte, error) {
	var tcp, udp int
	if _, err := fmt.Sscan(a[1]+" "+a[2], &tcp, &udp); err != nil {
		return nil, err
	}
	got := map[string]string{}
	for _, w := range ways {
		got[w.name] = "LEAK"
		if err := w.try(netip.MustParseAddr(a[0]), tcp, udp, a[3]); err != nil {
			got[w.name] = err.Error()
		}
	}
	return json.Marshal(got)
}

// TestGate_BlocksBypasses tries nineteen ways to send a packet past the gate, by a program with every capability that a
// sandbox could have.
func TestGate_BlocksBypasses(t *testing.T) {
	t.Parallel()
	host := ownAddress(t)
	var heard atomic.Int64
	l, err := net.Listen("tcp", net.JoinHostPort(host.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", net.JoinHostPort(host.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	name := fmt.Sprintf("@coppice-gate-%d-%d", os.Getpid(), time.Now().UnixNano())
	x, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, l := range []net.Listener{l, x} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				heard.Add(1)
				c.Close()
			}
		}()
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			heard.Add(1)
			u.WriteTo([]byte("heard"), from)
		}
	}()
	b := &book{
		decide: func(r Request) Decision {
			if r.Addr == host && r.Proto == TCP && r.Port == 80 {
				return Decision{Verdict: Allow, Rule: "one port"}
			}
			return Decision{Rule: "none"}
		},
		names: map[string][]netip.Addr{},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(host, 80): listen(t, echo)},
	}
	s := start(t, veth, b, func(o *Options) {
		inner := o.Dial
		o.Dial = func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			if to.Port() == 80 {
				return inner(ctx, network, to)
			}
			var d net.Dialer
			return d.DialContext(ctx, network, to.String())
		}
	})
	_, tport, _ := net.SplitHostPort(l.Addr().String())
	_, uport, _ := net.SplitHostPort(u.LocalAddr().String())
	var got map[string]string
	if err := json.Unmarshal(s.must(t, "leak", nil, host.String(), tport, uport, name), &got); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(ways) || len(got) < 19 {
		t.Errorf("%d ways were tried", len(got))
	}
	for way, what := range got {
		t.Logf("%-34s %s", way, what)
		if what == "LEAK" {
			t.Errorf("%s leaks", way)
		}
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("the host received %d packets or connections from the sandbox", n)
	}
	for _, proto := range []Proto{TCP, UDP, ICMP, "udplite"} {
		s.wait(t, string(proto), func(e Event) bool { return e.Kind == KindDeny && e.Proto == proto })
	}
	s.denied(t, UDP, "the source address of the packet")
	s.denied(t, UDP, "fragment")
	if err := s.Close(); err != nil { // waits for dials in progress
		t.Error(err)
	}
	for _, to := range b.reached() {
		if to != netip.AddrPortFrom(host, 80) {
			t.Errorf("%v was dialled", to)
		}
	}
}

// ownAddress returns an address of this machine that is not loopback.
func ownAddress(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() &&
			!p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return netip.MustParseAddr("127.0.0.2")
}
