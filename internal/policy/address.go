package policy

import (
	"net/netip"
	"slices"
	"sync"
)

// guards are the ranges of addresses that lead elsewhere than to the internet: to this machine, its network, or the
// services that give a machine its own secrets. Only a rule for addresses inside the same range names such an address;
// a rule for a wider range does not, nor a rule for a name, except for what Private allows. Ranges may overlap. The
// smallest counts, so 169.254.0.0/16 does not name 169.254.169.254.
var guards = sync.OnceValue(func() (all []guard) {
	for _, g := range [][2]string{
		{"0.0.0.0/8", "an address of the host itself"},
		{"10.0.0.0/8", private},
		{"100.64.0.0/10", "a CGNAT address"},
		{"100.80.80.80/32", metadata},
		{"100.96.0.96/32", metadata},
		{"100.100.100.200/32", metadata},
		{"127.0.0.0/8", "a loopback address"},
		{"168.63.129.16/32", metadata},
		{"169.254.0.0/16", "a link-local address"},
		{"169.254.169.254/32", metadata},
		{"169.254.170.2/32", metadata},
		{"169.254.170.23/32", metadata},
		{"172.16.0.0/12", private},
		{"192.0.0.0/24", "a protocol assignment address"},
		{"192.0.0.192/32", metadata},
		{"192.0.2.0/24", documentation},
		{"192.88.99.0/24", "a 6to4 relay address"},
		{"192.168.0.0/16", private},
		{"198.18.0.0/15", "a benchmarking address"},
		{"198.51.100.0/24", documentation},
		{"203.0.113.0/24", documentation},
		{"224.0.0.0/4", "a multicast address"},
		{"240.0.0.0/4", "a reserved or broadcast address"},

		{"::/96", embeds},
		{"::/128", "an unspecified address"},
		{"::1/128", "a loopback address"},
		{"64:ff9b:1::/48", embeds},
		{"100::/64", "a discard address"},
		{"2001::/23", "a protocol assignment address"},
		{"2001:db8::/32", documentation},
		{"2002::/16", embeds},
		{"3fff::/20", documentation},
		{"5f00::/16", "a segment routing address"},
		{"fc00::/7", private},
		{"fd00:42::42/128", metadata},
		{"fd00:c1::a9fe:a9fe/128", metadata},
		{"fd00:100::100:200/128", metadata},
		{"fd00:a9fe:a9fe::1/128", metadata},
		{"fd00:ec2::23/128", metadata},
		{"fd00:ec2::254/128", metadata},
		{"fd20:ce::254/128", metadata},
		{"fe80::/10", "a link-local address"},
		{"fec0::/10", "a site-local address"},
		{"ff00::/8", "a multicast address"},
	} {
		all = append(all, guard{netip.MustParsePrefix(g[0]), g[1]})
	}
	return all
})

type guard struct {
	prefix netip.Prefix
	what   string
}

// The kinds of addresses of several ranges.
const (
	private       = "a private address"
	documentation = "a documentation address"
	metadata      = "a cloud metadata address"
	embeds        = "an IPv4 address in another form"
)

// inside are the ranges of addresses inside of organizations that a rule with Private allows its host to lead to: RFC
// 1918, RFC 6598 (CGNAT) and RFC 4193 (unique local).
var inside = [...]netip.Prefix{
	prefix4(10, 0, 8), prefix4(100, 64, 10), prefix4(172, 16, 12), prefix4(192, 168, 16),
	netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfc}), 7),
}

func prefix4(a, b byte, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), bits)
}

// Special describes an address that is not of the public internet, as in "a loopback address", or returns "". Only a
// rule for addresses allows such an address, or a rule with Private if it is Inside.
func Special(a netip.Addr) string {
	_, what, _ := guarded(plain(a))
	return what
}

// Inside reports whether a rule for a name with private lets that name lead to a: it is in a private network, a
// carrier's (CGNAT), or unique local, and not in a smaller range of another kind, such as cloud metadata. An IPv4
// address behind NAT64 or in another form is not.
func Inside(a netip.Addr) bool {
	a = plain(a)
	in, _, ok := guarded(a)
	return ok && slices.Contains(inside[:], in)
}

var (
	nat64  = netip.PrefixFrom(netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b}), 96)
	sixTo4 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16)
	compat = netip.PrefixFrom(netip.IPv6Unspecified(), 96)
	global = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20}), 3)
)

// plain returns the canonical form of an address, in which it is decided about: IPv4 mapped to IPv6 as IPv4, without a
// zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// guarded returns the range that a rule must be inside of to name a, and the kind of addresses there. ok is false for
// an address of the public internet. a is plain.
func guarded(a netip.Addr) (in netip.Prefix, what string, ok bool) {
	for _, g := range guards() {
		if g.prefix.Contains(a) && (!ok || g.prefix.Bits() > in.Bits()) {
			in, what, ok = g.prefix, g.what, true
		}
	}
	switch {
	case ok, !a.Is6():
	case nat64.Contains(a):
		// An IPv4 address that is not of the public internet is not so behind NAT64 either.
		if in, what, ok := guarded(embedded(a)); ok {
			p, err := a.Prefix(96 + in.Bits())
			return p, what, err == nil
		}
	case !global.Contains(a):
		return netip.PrefixFrom(a, a.BitLen()), "an unassigned address", true
	}
	return in, what, ok
}

// embedded returns the IPv4 address that a leads to, if a is of a form that embeds one, or the zero address. a is
// plain.
func embedded(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return netip.Addr{}
	}
	b := a.As16()
	switch {
	case nat64.Contains(a), compat.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16]))
	case sixTo4.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return netip.Addr{}
}
