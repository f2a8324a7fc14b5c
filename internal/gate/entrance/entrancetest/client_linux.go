//go:build linux && (amd64 || arm64)

// Package entrancetest is the side of init for tests of an entrance: its listeners, and a client that asks for
// connections.
package entrancetest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
)

// Client asks an entrance for connections. It is safe for concurrent use.
type Client struct{ dir string }

// Listen returns the listeners of an entrance, for streams and for messages, and a client of both.
func Listen(t testing.TB) (c Client, stream, messages *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "entrance-") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c = Client{dir}
	var files []*os.File
	for _, network := range []string{"unix", "unixpacket"} {
		l, err := net.ListenUnix(network, c.addr(network))
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		files = append(files, f)
	}
	return c, files[0], files[1]
}

func (c Client) addr(network string) *net.UnixAddr {
	return &net.UnixAddr{Name: filepath.Join(c.dir, network), Net: network}
}

// Connect connects to the listener for a network, "tcp" or "udp", and sends nothing.
func (c Client) Connect(network string) (*net.UnixConn, error) {
	kind := map[string]string{"tcp": "unix", "udp": "unixpacket"}[network]
	return net.DialUnix(kind, nil, c.addr(kind))
}

// Ask connects, and sends the header for an address. The caller closes both, and reads the status with Await.
func (c Client) Ask(network, to string) (conn *net.UnixConn, status *os.File, err error) {
	conn, err = c.Connect(network)
	if err != nil {
		return nil, nil, err
	}
	status, w, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	defer w.Close()
	h := ask.Header(netip.MustParseAddrPort(to))
	if err := Send(conn, h[:], w); err != nil {
		conn.Close()
		status.Close()
		return nil, nil, err
	}
	return conn, status, nil
}

// Send sends one message with descriptors.
func Send(conn *net.UnixConn, message []byte, files ...*os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		failed = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(failed, unix.EAGAIN)
	})
	runtime.KeepAlive(files)
	return errors.Join(err, failed)
}

// Await reads a status and closes its pipe. It returns io.EOF for a connection that the entrance closed.
func Await(status *os.File) (syscall.Errno, error) {
	defer status.Close()
	b, err := io.ReadAll(status)
	if err == nil && len(b) == 0 {
		err = io.EOF
	}
	if err != nil {
		return 0, err
	}
	return ask.ParseStatus(b)
}

// Dial asks for a connection and waits for its status, which is the error if it is not 0.
func (c Client) Dial(network, to string) (*net.UnixConn, error) {
	conn, status, err := c.Ask(network, to)
	if err != nil {
		return nil, err
	}
	no, err := Await(status)
	if err == nil && no != 0 {
		err = no
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
