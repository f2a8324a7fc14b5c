package client

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// dialLong connects through /proc/self/fd of the directory, because a sockaddr_un holds only 107 bytes.
func dialLong(ctx context.Context, d *net.Dialer, path string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
