//go:build linux && (amd64 || arm64)

package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestInet_PassesWhatTellsSocketsApart checks what the kernel does with a call if both filters are installed, with and
// without a report of refusals.
func TestInet_PassesWhatTellsSocketsApart(t *testing.T) {
	t.Parallel()
	const high = uint64(0xdead) << 32
	local, inet, inet6 := uint64(unix.AF_UNIX), uint64(unix.AF_INET), uint64(unix.AF_INET6)
	refused := Errno(unix.EACCES)
	for _, tt := range []struct {
		name string
		nr   uint32
		args [6]uint64
		want Action // Notify if the listener refuses the call with a report
	}{
		{"tcp", unix.SYS_SOCKET, [6]uint64{inet, unix.SOCK_STREAM}, Notify},
		{"tcp with flags", unix.SYS_SOCKET, [6]uint64{inet6, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 6}, Notify},
		{"tcp with rubbish above", unix.SYS_SOCKET, [6]uint64{high | inet, unix.SOCK_STREAM}, Notify},
		{"udp", unix.SYS_SOCKET, [6]uint64{inet6, unix.SOCK_DGRAM}, Notify},
		{"raw", unix.SYS_SOCKET, [6]uint64{inet, unix.SOCK_RAW, unix.IPPROTO_ICMP}, Notify},
		{"sctp", unix.SYS_SOCKET, [6]uint64{inet, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, Notify},
		{"a Unix stream", unix.SYS_SOCKET, [6]uint64{local, unix.SOCK_STREAM}, Allow},
		{"Unix datagrams", unix.SYS_SOCKET, [6]uint64{local, unix.SOCK_DGRAM}, refused},
		{"a pair of Unix datagrams", unix.SYS_SOCKETPAIR, [6]uint64{local, unix.SOCK_DGRAM}, refused},
		{"a pair", unix.SYS_SOCKETPAIR, [6]uint64{inet, unix.SOCK_STREAM}, refused},
		{"netlink", unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
			Errno(unix.EAFNOSUPPORT)},
		{"vsock", unix.SYS_SOCKET, [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, Errno(unix.EAFNOSUPPORT)},
		{"packet", unix.SYS_SOCKET, [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, Errno(unix.EAFNOSUPPORT)},
		{"no family", unix.SYS_SOCKET, [6]uint64{0, unix.SOCK_STREAM}, Errno(unix.EAFNOSUPPORT)},
		{"connect", unix.SYS_CONNECT, [6]uint64{3, 0x1000, 16}, Notify},
		{"listen", unix.SYS_LISTEN, [6]uint64{3, 5}, Notify},
		{"bind", unix.SYS_BIND, [6]uint64{3, 0x1000, 16}, Notify},
		{"getsockname", unix.SYS_GETSOCKNAME, [6]uint64{3, 0x1000, 0x2000}, Notify},
		{"getpeername", unix.SYS_GETPEERNAME, [6]uint64{3, 0x1000, 0x2000}, Notify},
		{"accept", unix.SYS_ACCEPT, [6]uint64{3, 0x1000, 0x2000}, Notify},
		{"accept4", unix.SYS_ACCEPT4, [6]uint64{3, 0x1000, 0x2000}, Notify},
		{"accept without an address", unix.SYS_ACCEPT, [6]uint64{3}, Notify},
		{"accept4 without an address", unix.SYS_ACCEPT4, [6]uint64{3, 0, 0, unix.SOCK_CLOEXEC}, Notify},
		{"sendto", unix.SYS_SENDTO, [6]uint64{3, 0x1000, 4, 0, 0x2000, 16}, Notify},
		{"send", unix.SYS_SENDTO, [6]uint64{3, 0x1000, 4}, Allow},
		{"recvfrom", unix.SYS_RECVFROM, [6]uint64{3, 0x1000, 4, 0, 0x2000, 0x3000}, Notify},
		{"recv", unix.SYS_RECVFROM, [6]uint64{3, 0x1000, 4}, Allow},
		{"sendmsg", unix.SYS_SENDMSG, [6]uint64{3, 0x1000}, Notify},
		{"sendmmsg", unix.SYS_SENDMMSG, [6]uint64{3, 0x1000, 2}, Notify},
		{"recvmsg", unix.SYS_RECVMSG, [6]uint64{3, 0x1000}, Notify},
		{"recvmmsg", unix.SYS_RECVMMSG, [6]uint64{3, 0x1000, 2}, Notify},
		{"TCP_NODELAY", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_TCP, unix.TCP_NODELAY}, Pretend},
		{"IP_TTL", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_IP, unix.IP_TTL}, Pretend},
		{"IPV6_V6ONLY", unix.SYS_SETSOCKOPT, [6]uint64{3, high | unix.SOL_IPV6, unix.IPV6_V6ONLY}, Pretend},
		{"UDP_CORK", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_UDP, 1}, Pretend},
		{"UDP_SEGMENT", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_UDP, unix.UDP_SEGMENT}, Errno(unix.ENOPROTOOPT)},
		{"SO_REUSEPORT", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_SOCKET, unix.SO_REUSEPORT}, Pretend},
		{"SO_KEEPALIVE", unix.SYS_SETSOCKOPT, [6]uint64{3, unix.SOL_SOCKET, unix.SO_KEEPALIVE}, Allow},
		{"SO_TYPE", unix.SYS_GETSOCKOPT, [6]uint64{3, unix.SOL_SOCKET, unix.SO_TYPE}, Notify},
		{"SO_ERROR", unix.SYS_GETSOCKOPT, [6]uint64{3, unix.SOL_SOCKET, unix.SO_ERROR}, Allow},
		{"io_uring", unix.SYS_IO_URING_SETUP, [6]uint64{}, Errno(unix.ENOSYS)},
	} {
		for _, report := range []bool{false, true} {
			o := Options{Report: report, Shared: true, GateInet: true}
			give := Notifying(NotifyOptions{Connect: true, Terminals: true, Inet: true, Refuse: o})
			c := call{nr: tt.nr, arch: nativeArch, args: tt.args}
			hard, _ := run(t, Hardening(o), c)
			soft, _ := run(t, give, c)
			got, want := strictest(hard, soft), tt.want
			if _, errno, told := RefusalsOf(o).Answer(c.nr, c.args); got == Notify && want != Notify && told {
				got = Errno(errno) // the listener refuses it
			}
			if got != want {
				t.Errorf("%s, report %t: %#x, want %#x", tt.name, report, got, want)
			}
		}
	}
	for _, r := range inetRules {
		if r.Why == "" {
			t.Errorf("rule %v: no reason", r.Calls)
		}
	}
}

// TestInet_LeavesTransportToTheKernel checks that no argument of calls that transport data without addresses is read.
func TestInet_LeavesTransportToTheKernel(t *testing.T) {
	t.Parallel()
	p := Notifying(NotifyOptions{Connect: true, Terminals: true, Inet: true})
	for _, nr := range []uint32{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV,
		unix.SYS_EPOLL_PWAIT, unix.SYS_SHUTDOWN, unix.SYS_CLOSE} {
		if got, read := run(t, p, call{nr: nr, arch: nativeArch}); got != Allow || read {
			t.Errorf("call %d: %#x, arguments read: %t", nr, got, read)
		}
	}
}
