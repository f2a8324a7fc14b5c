package gate

import (
	"net/netip"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/policy"
)

// never describes addr if no policy can allow it; else it returns "". Such an address is not a host's, and an IPv4
// address has only one spelling.
func never(addr netip.Addr) string {
	switch {
	case !addr.IsValid() || addr.Zone() != "":
		return "no address"
	case addr.Is4():
		switch a := addr.As4(); {
		case a[0] == 0:
			return "an address of the host itself" // RFC 1122, 3.2.1.3
		case a[0] >= 224 && a[0] < 240:
			return "a multicast address"
		case a[0] >= 240:
			return "a reserved or broadcast address"
		case a[0] == 192 && a[1] == 0 && a[2] == 0 && a[3] < 8:
			return "an address of the gate" // and of any other host on such a link
		}
		return ""
	}
	a := addr.As16()
	switch {
	case a[0] == 0xff:
		return "a multicast address"
	case zero(a[:8]) && (a[8]|a[9] == 0) && (a[10] == 0 && a[11] == 0 || a[10] == 0xff && a[11] == 0xff):
		return "an unspecified address, loopback, or IPv4 written as IPv6" // ::/96, ::ffff:0:0/96
	case zero(a[:8]) && a[8] == 0xff && a[9] == 0xff && a[10]|a[11] == 0:
		return "IPv4 written as IPv6" // ::ffff:0:0:0/96, RFC 2765
	case string(a[:8]) == link.Prefix6:
		return "an address of the gate"
	}
	return ""
}

// special describes addr if a name may only lead there when the policy also names the address, or lets the name lead
// inside; else it returns "". It covers addresses that the registries of special-purpose addresses (RFC 6890) do not
// call globally reachable, and those that embed an IPv4 address, by the policy's own list and by a shorter,
// independent one.
func special(addr netip.Addr) string {
	if what := policy.Special(addr); what != "" {
		return what
	}
	if addr.Is4() {
		switch a := addr.As4(); {
		case a[0] == 10, a[0] == 172 && a[1]&0xf0 == 16, a[0] == 192 && a[1] == 168:
			return "a private address"
		case a[0] == 127:
			return "a loopback address"
		case a[0] == 169 && a[1] == 254:
			return "a link-local address, where clouds have their metadata"
		case a[0] == 100 && a[1]&0xc0 == 64:
			return "a shared address (CGNAT)"
		case a[0] == 192 && a[1] == 0 && (a[2] == 0 || a[2] == 2), a[0] == 192 && a[1] == 88 && a[2] == 99,
			a[0] == 198 && a[1]&0xfe == 18, a[0] == 198 && a[1] == 51 && a[2] == 100, a[0] == 203 && a[1] == 0 && a[2] == 113,
			a == [4]byte{168, 63, 129, 16}: // Azure's WireServer: a public address that is the host's
			return "a special-purpose address"
		}
		return ""
	}
	a := addr.As16()
	switch {
	case a[0]&0xfe == 0xfc:
		return "a private address" // also fd00:ec2::254, metadata
	case a[0] == 0xfe:
		return "a link-local or site-local address"
	case string(a[:12]) == nat64:
		// NAT64 (RFC 6052): on a host with only IPv6, every name leads here. The embedded address counts.
		in := netip.AddrFrom4([4]byte(a[12:]))
		if what := never(in); what != "" {
			return what
		}
		return special(in)
	case a[0] == 0x00 && a[1] == 0x64 && a[2] == 0xff && a[3] == 0x9b:
		return "an IPv4 address behind NAT64" // 64:ff9b:1::/48, local to a network
	case a[0] == 0x20 && a[1] == 0x02:
		return "an IPv4 address behind 6to4"
	case a[0] == 0x20 && a[1] == 0x01 && a[2] < 2:
		return "a special-purpose address" // 2001::/23, Teredo among them
	case a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0d && a[3] == 0xb8, a[0] == 0x3f && a[1] == 0xff && a[2]&0xf0 == 0:
		return "an address for documentation"
	case a[0]&0xe0 != 0x20:
		return "a special-purpose address" // global unicast is 2000::/3
	}
	return ""
}

// nat64 is the well-known prefix 64:ff9b::/96 (RFC 6052), which an IPv4 address follows.
const nat64 = "\x00\x64\xff\x9b\x00\x00\x00\x00\x00\x00\x00\x00"

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
