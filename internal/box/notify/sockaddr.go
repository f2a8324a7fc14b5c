//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// The layout of sockaddr_in and sockaddr_in6 (ip(7), ipv6(7)). The last field of the latter, the scope, may be missing.
const (
	inetPort     = 2
	inetAddress  = 4
	inetSize     = 16
	inet6Address = 8
	inet6Least   = 24
	inet6Size    = 28
)

// family returns the family of an address of at least two bytes.
func family(address []byte) uint32 { return uint32(binary.NativeEndian.Uint16(address)) }

// addressOf decodes an address of the Internet.
func addressOf(b []byte) (netip.AddrPort, error) {
	switch f := family(b); {
	case f == unix.AF_INET && len(b) >= inetSize:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[inetAddress:])), binary.BigEndian.Uint16(b[inetPort:])), nil
	case f == unix.AF_INET6 && len(b) >= inet6Least:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[inet6Address:])), binary.BigEndian.Uint16(b[inetPort:])), nil
	case ofInternet(f):
		return netip.AddrPort{}, unix.EINVAL
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

// sockaddr encodes an address for a socket of a family. The zero address is that of a socket without a name.
func sockaddr(family uint32, a netip.AddrPort) []byte {
	if !a.Addr().IsValid() || a.Addr().IsUnspecified() {
		a = netip.AddrPortFrom(netip.IPv6Unspecified(), a.Port())
	}
	b := make([]byte, inet6Size)
	binary.NativeEndian.PutUint16(b, uint16(family))
	binary.BigEndian.PutUint16(b[inetPort:], a.Port())
	all := a.Addr().As16()
	if family == unix.AF_INET {
		copy(b[inetAddress:], all[12:])
		return b[:inetSize]
	}
	copy(b[inet6Address:], all[:])
	return b
}

// askedAddress copies an address argument of a call.
func (c caller) askedAddress(at, size uint64) ([]byte, error) {
	n := uint32(size)
	if n < pathAt || n > maxAddress {
		return nil, unix.EINVAL
	}
	b := make([]byte, n)
	return b, c.readAll(at, b)
}
