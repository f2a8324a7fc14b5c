//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/sentrytest"
)

// kind is one of the links that a gate can have.
type kind string

const (
	veth   kind = "veth"   // the sandbox has a kernel's network stack
	socket kind = "socket" // it has a sentry's
)

// overBoth runs a test over both links: what a gate does depends on neither.
func overBoth(t *testing.T, test func(*testing.T, kind)) {
	for _, k := range []kind{veth, socket} {
		t.Run(string(k), func(t *testing.T) { test(t, k) })
	}
}

// sandboxed is the network stack that the agent is inside of; nil is the kernel's.
var sandboxed *sentrytest.Sentry

// dial is net.DialTimeout, wherever the agent is.
func dial(network, addr string, patience time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return dialContext(ctx, network, addr)
}

func dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if sandboxed != nil {
		return sandboxed.DialContext(ctx, network, addr)
	}
	return (&net.Dialer{Timeout: patience, Resolver: lookups()}).DialContext(ctx, network, addr)
}

// lookups asks whom /etc/resolv.conf names.
func lookups() *net.Resolver {
	if sandboxed != nil {
		return sandboxed.Resolver()
	}
	return &net.Resolver{PreferGo: true}
}
