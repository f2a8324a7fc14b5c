// Package link is the link between a sandbox and its gate: the addresses of both ends and, on Linux, either a pair of
// interfaces, or a pair of sockets if the sandbox has no host network namespace. It is the part of the gate that the
// keeper needs, without the gate's network stack. Keeper and gate import it; it imports fault.
package link

import (
	"fmt"
	"net/netip"
)

// Both ends have an IPv4 and an IPv6 address, in networks of these sizes.
//
// IPv4 is 192.0.0.0/29, which RFC 7335 reserves for the inner side of translators such as this: no real network uses
// it, so no policy can mean a host there, unlike 10.0.2.0/24 or the benchmarking range. Unlike 169.254.0.0/16 it is of
// global scope to getaddrinfo(3). IPv6 is a unique local prefix (RFC 4193) drawn once at random; since its label is not
// that of the internet, programs prefer IPv4 for a name that has both.
const (
	Bits4 = 29
	Bits6 = 64
)

// Prefix6 is fdc0:71ce:9a7e::/64.
const Prefix6 = "\xfd\xc0\x71\xce\x9a\x7e\x00\x00"

// Gate4 returns the gate's IPv4 address. It answers DNS at both of its addresses.
func Gate4() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 0, 1}) }

// Box4 returns the sandbox's own IPv4 address.
func Box4() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 0, 2}) }

// Gate6 returns the gate's IPv6 address.
func Gate6() netip.Addr { return link6(1) }

// Box6 returns the sandbox's own IPv6 address.
func Box6() netip.Addr { return link6(2) }

func link6(host byte) netip.Addr {
	var a [16]byte
	copy(a[:], Prefix6)
	a[15] = host
	return netip.AddrFrom16(a)
}

// Resolvers returns the /etc/resolv.conf of the sandbox. With asks, an answer can take as long as a person does, so
// the timeouts are as long as the C libraries allow (30 s for each server in glibc, 60 s in total in musl).
func Resolvers(asks bool) []byte {
	b := fmt.Appendf(nil, "nameserver %v\nnameserver %v\n", Gate4(), Gate6())
	if asks {
		b = append(b, "options timeout:60 attempts:2\n"...)
	}
	return b
}

// The hardware addresses of both ends. They are locally administered, and the same for every sandbox, since no two
// share a link.
const (
	GateMAC = "\x02\xc0\x99\x1c\xe0\x01"
	BoxMAC  = "\x02\xc0\x99\x1c\xe0\x02"
)
