// Package link is the wire between a sandbox and its gate: the addresses of both ends,
// and what is between them (Linux): a pair of interfaces, or a pair of sockets if the
// network stack of the sandbox is a program (gVisor). It is what the sandbox's
// keeper needs of the gate, without the gate's network stack. Keeper and gate import it;
// it imports fault.
package link

import (
	"fmt"
	"net/netip"
)

// Both ends have an address of each kind, in networks of these sizes.
//
// IPv4 is 192.0.0.0/29, which RFC 7335 keeps for the inner side of translators such
// as this: no network has it, so no policy can mean a host there, unlike 10.0.2.0/24
// or the benchmarking range. Unlike 169.254.0.0/16 it is of global scope to
// getaddrinfo(3). IPv6 is a unique local prefix (RFC 4193) drawn once at random; since
// its label is not that of the internet, programs prefer IPv4 where a name has both.
const (
	Bits4 = 29
	Bits6 = 64
)

// Prefix6 is fdc0:71ce:9a7e::/64.
const Prefix6 = "\xfd\xc0\x71\xce\x9a\x7e\x00\x00"

// Gate4 is the gate's IPv4 address. At both of its addresses it answers DNS.
func Gate4() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 0, 1}) }

// Box4 is the sandbox's own IPv4 address.
func Box4() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 0, 2}) }

// Gate6 is the gate's IPv6 address.
func Gate6() netip.Addr { return link6(1) }

// Box6 is its IPv6 address.
func Box6() netip.Addr { return link6(2) }

func link6(host byte) netip.Addr {
	var a [16]byte
	copy(a[:], Prefix6)
	a[15] = host
	return netip.AddrFrom16(a)
}

// Resolvers is the /etc/resolv.conf of the sandbox. Where people are asked, an answer can
// take as long as they do: programs are told to wait for it, as long as their libraries
// let them (30 s for each server in glibc, 60 s in all in musl).
func Resolvers(asks bool) []byte {
	b := fmt.Appendf(nil, "nameserver %v\nnameserver %v\n", Gate4(), Gate6())
	if asks {
		b = append(b, "options timeout:60 attempts:2\n"...)
	}
	return b
}

// The hardware addresses of both ends: locally administered, and the same for every
// sandbox, since no two share a link.
const (
	GateMAC = "\x02\xc0\x99\x1c\xe0\x01"
	BoxMAC  = "\x02\xc0\x99\x1c\xe0\x02"
)
