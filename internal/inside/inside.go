// Package inside is Coppice for a process in a sandbox: it uses the sandbox's own history over the line protocol of the
// socket inside (see package lineapi), as far as the policy of the sandbox permits. Package cli offers it as commands,
// and package mcpapi as MCP tools.
//
// It runs with no more rights than any other process of the sandbox, and the daemon trusts nothing that it sends. Only
// cli imports it; it imports client/wire and fault.
package inside

import (
	"net"
	"os"

	"github.com/coppice-dev/coppice/client/wire"
)

// Socket returns the path of the sandbox's own socket if this process is in a sandbox and its user did not choose a
// store or a daemon, and "" otherwise. getenv is os.Getenv, or an environment in its place.
//
// A sandbox has a link at wire.SelfSocket to a socket at wire.SelfTarget, so that a daemon's socket of that name on a
// host is not mistaken for it. A sandbox with --self off has neither, but the program at wire.SelfProgram: the path is
// returned, and each call fails with the reason.
func Socket(getenv func(string) string) string {
	for _, name := range []string{"COPPICE_HOME", "COPPICE_SOCKET", "COPPICE_HOST"} {
		if getenv(name) != "" {
			return ""
		}
	}
	if st, err := os.Lstat(wire.SelfProgram); err == nil && st.Mode().IsRegular() {
		return wire.SelfSocket
	}
	if to, err := os.Readlink(wire.SelfSocket); err != nil || to != wire.SelfTarget {
		return ""
	}
	if st, err := os.Lstat(wire.SelfTarget); err != nil || st.Mode().Type() != os.ModeSocket {
		return ""
	}
	return wire.SelfSocket
}

// Client is a connection to the history of the sandbox. Every method makes a connection of its own, which ends with its
// context. Errors carry the fault.Kind that the daemon sent. It implements mcpapi.Self.
type Client struct {
	socket string
	dialer net.Dialer
}

// New returns a Client of the socket at a path.
func New(socket string) *Client { return &Client{socket: socket} }
