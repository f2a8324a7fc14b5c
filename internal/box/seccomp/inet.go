//go:build linux && (amd64 || arm64)

package seccomp

import "golang.org/x/sys/unix"

// passInet makes rules pass on the calls of sockets of the Internet. The listener answers all that tell a Unix socket
// from one of the Internet; what transports data is left to the kernel.
func passInet(o NotifyOptions, rules []Rule) []Rule {
	rules = pass(rules, unix.SYS_SOCKET, Case{When: []Test{ofInternet}, Do: Notify},
		"the listener makes a Unix socket in its place, so that no socket of the host's network is in the sandbox")
	if !o.Connect {
		rules = append(rules, connectRules...)
	}
	return append(rules, inetRules...)
}

// wanted is about a pointer that is not null. An address whose low half is zero is taken for null: the kernel then
// answers, with the names of Unix sockets, which harms only its caller.
func wanted(arg int) []Test { return []Test{{Arg: arg, Is: NotIn, Of: []uint32{0}}} }

var inetRules = []Rule{
	{
		Calls: []uint32{unix.SYS_BIND, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME},
		Do:    Notify,
		Why:   "callers have addresses of the Internet for sockets that have the names of files, or none",
	},
	{
		Calls: []uint32{unix.SYS_ACCEPT, unix.SYS_ACCEPT4},
		Do:    Notify,
		Why:   "the same for the address of the peer, also if the caller asks for it later",
	},
	{
		Calls: []uint32{unix.SYS_SENDTO},
		Cases: []Case{{When: wanted(4), Do: Notify}},
		Why:   "the address of a datagram, which the listener sends: the kernel would ignore it",
	},
	{
		Calls: []uint32{unix.SYS_RECVFROM},
		Cases: []Case{{When: wanted(4), Do: Notify}},
		Why:   "the address of a datagram; resolvers ignore answers without the address that they asked",
	},
	{
		Calls: []uint32{unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMSG, unix.SYS_RECVMMSG},
		Do:    Notify,
		Why:   "the same for addresses in memory; the kernel carries out the calls with sockets that are not for UDP",
	},
	{
		Calls: []uint32{unix.SYS_SETSOCKOPT},
		Cases: []Case{
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_UDP}}, {Arg: 2, Is: In, Of: []uint32{unix.UDP_SEGMENT}}},
				Do: Errno(unix.ENOPROTOOPT)}, // messages that are many datagrams
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_IP, unix.SOL_IPV6, unix.SOL_TCP, unix.SOL_UDP}}},
				Do: Pretend},
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_SOCKET}}, {Arg: 2, Is: In, Of: []uint32{unix.SO_REUSEPORT}}},
				Do: Pretend},
		},
		Why: "Unix sockets have no such options (SO_REUSEPORT since Linux 6.13), without which many programs give up",
	},
	{
		Calls: []uint32{unix.SYS_GETSOCKOPT},
		Cases: []Case{
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_SOCKET}},
				{Arg: 2, Is: In, Of: []uint32{unix.SO_DOMAIN, unix.SO_TYPE, unix.SO_PROTOCOL}}}, Do: Notify},
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_TCP}}, {Arg: 2, Is: In, Of: []uint32{unix.TCP_NODELAY}}},
				Do: Notify},
			{When: []Test{{Arg: 1, Is: In, Of: []uint32{unix.SOL_IPV6}}, {Arg: 2, Is: In, Of: []uint32{unix.IPV6_V6ONLY}}},
				Do: Notify},
		},
		Why: "programs that get a socket by its number ask what it is, and gRPC whether an option is set",
	},
}
