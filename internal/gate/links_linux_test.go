//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/sentrytest"
)

// kind is a kind of link between a sandbox and its gate.
type kind string

const (
	veth   kind = "veth"   // the sandbox has the kernel's network stack
	socket kind = "socket" // the sandbox has a sentry's network stack
)

// overBoth runs a test over both kinds of link, which must not affect the gate's decisions.
func overBoth(t *testing.T, test func(*testing.T, kind)) {
	for _, k := range []kind{veth, socket} {
		t.Run(string(k), func(t *testing.T) { test(t, k) })
	}
}

// sandboxed is the network stack of the agent; nil is the kernel's.
var sandboxed *sentrytest.Sentry

// dial is net.DialTimeout on the agent's network stack.
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

// lookups returns a resolver that uses the servers in /etc/resolv.conf.
func lookups() *net.Resolver {
	if sandboxed != nil {
		return sandboxed.Resolver()
	}
	return &net.Resolver{PreferGo: true}
}
