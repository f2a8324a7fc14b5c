//go:build !linux

package client

import "net"

// dial connects to a socket. The broker runs on Linux only, so none is there.
func dial(path string) (net.Conn, error) { return net.Dial("unix", path) }
