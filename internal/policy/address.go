package policy

import (
	"net/netip"
	"sync"
)

// guards are the addresses that lead somewhere else than to the internet: into this
// machine, its network, or the services that tell a machine its own secrets. Only a
// rule for addresses inside the same range names one of them: neither a rule for a
// name, nor one for a wider range. Ranges may lie in one another; the smallest
// counts, so that 169.254.0.0/16 does not name 169.254.169.254.
var guards = sync.OnceValue(func() (all []guard) {
	for _, g := range [][2]string{
		{"0.0.0.0/8", "this machine"},
		{"10.0.0.0/8", "a private network"},
		{"100.64.0.0/10", "a carrier's network"},
		{"100.100.100.200/32", metadata},
		{"127.0.0.0/8", "this machine"},
		{"168.63.129.16/32", metadata},
		{"169.254.0.0/16", "the local link"},
		{"169.254.169.254/32", metadata},
		{"169.254.170.2/32", metadata},
		{"169.254.170.23/32", metadata},
		{"172.16.0.0/12", "a private network"},
		{"192.0.0.0/24", "protocols"},
		{"192.0.0.192/32", metadata},
		{"192.0.2.0/24", "documents"},
		{"192.88.99.0/24", "relays"},
		{"192.168.0.0/16", "a private network"},
		{"198.18.0.0/15", "measurements"},
		{"198.51.100.0/24", "documents"},
		{"203.0.113.0/24", "documents"},
		{"224.0.0.0/4", "groups of hosts"},
		{"240.0.0.0/4", "no one"},

		{"::/96", "IPv4 in another form"},
		{"::/128", "this machine"},
		{"::1/128", "this machine"},
		{"64:ff9b:1::/48", "IPv4 in another form"},
		{"100::/64", "no one"},
		{"2001::/23", "protocols"},
		{"2001:db8::/32", "documents"},
		{"2002::/16", "IPv4 in another form"},
		{"3fff::/20", "documents"},
		{"5f00::/16", "segment routing"},
		{"fc00::/7", "a private network"},
		{"fd00:ec2::23/128", metadata},
		{"fd00:ec2::254/128", metadata},
		{"fd20:ce::254/128", metadata},
		{"fe80::/10", "the local link"},
		{"fec0::/10", "a private network"},
		{"ff00::/8", "groups of hosts"},
	} {
		all = append(all, guard{netip.MustParsePrefix(g[0]), g[1]})
	}
	return all
})

type guard struct {
	prefix netip.Prefix
	what   string
}

const metadata = "the metadata of a cloud's machine"

var (
	nat64  = netip.PrefixFrom(netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b}), 96)
	sixTo4 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x02}), 16)
	compat = netip.PrefixFrom(netip.IPv6Unspecified(), 96)
	global = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20}), 3)
)

// plain is the one form of an address in which it is decided on: IPv4 in IPv6 is
// IPv4, and a zone says nothing.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// guarded gives the range in which a rule has to lie to name a, and what is there.
// ok is false for an address of the internet. a is plain.
func guarded(a netip.Addr) (inside netip.Prefix, what string, ok bool) {
	for _, g := range guards() {
		if g.prefix.Contains(a) && (!ok || g.prefix.Bits() > inside.Bits()) {
			inside, what, ok = g.prefix, g.what, true
		}
	}
	switch {
	case ok, !a.Is6():
	case nat64.Contains(a):
		// What is not of the internet is not so in this form either.
		if in, what, ok := guarded(embedded(a)); ok {
			p, err := a.Prefix(96 + in.Bits())
			return p, what, err == nil
		}
	case !global.Contains(a):
		return netip.PrefixFrom(a, a.BitLen()), "no one yet", true
	}
	return inside, what, ok
}

// embedded gives the IPv4 address that a leads to, if a is one of the forms that
// carry one, else the zero address. a is plain.
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
