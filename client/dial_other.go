//go:build !linux

package client

import (
	"context"
	"fmt"
	"net"
)

func dialLong(_ context.Context, _ *net.Dialer, path string) (net.Conn, error) {
	return nil, fmt.Errorf("the socket path %s is longer than %d bytes", path, maxSocketPath)
}
