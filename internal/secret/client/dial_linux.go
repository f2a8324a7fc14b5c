package client

import (
	"net"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/unixsock"
)

// dial connects to a socket at a path of any length.
func dial(path string) (net.Conn, error) {
	conn, err := unixsock.Dial(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, err
	}
	return conn, nil
}
