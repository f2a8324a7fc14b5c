package client

import (
	"context"
	"net"
)

// maxSocketPath is the longest socket path that every system takes.
const maxSocketPath = 103

// DialSocket connects to a unix socket, also at a long path where the system
// has a way (Linux).
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	if len(path) <= maxSocketPath {
		return d.DialContext(ctx, "unix", path)
	}
	return dialLong(ctx, &d, path)
}
