//go:build linux && (amd64 || arm64)

package pipe

import (
	"errors"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/coppice-dev/coppice/internal/fault"
)

// StackError returns the error of a network stack that could not do what.
func StackError(what string, terr tcpip.Error) error {
	return fault.Wrap(errors.New(terr.String()), "network stack: %s", what)
}

// NetProto returns the network protocol of an address.
func NetProto(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}
