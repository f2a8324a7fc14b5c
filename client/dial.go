package client

import (
	"context"
	"net"
)

// maxSocketPath is the longest socket path that every system supports, in bytes.
const maxSocketPath = 103

// DialSocket connects to a Unix socket. On Linux the path may be of any length.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	if len(path) <= maxSocketPath {
		return d.DialContext(ctx, "unix", path)
	}
	return dialLong(ctx, &d, path)
}
