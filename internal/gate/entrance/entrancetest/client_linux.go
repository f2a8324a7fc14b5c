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

// Conn is a connection of the sandbox: for UDP, its end of a pair.
type Conn struct {
	*net.UnixConn
	Session *net.UnixConn // of UDP; nil for TCP
}

// Close closes the connection and its session.
func (c *Conn) Close() error {
	if c.Session != nil {
		c.Session.Close()
	}
	return c.UnixConn.Close()
}

// Ask connects, and sends the header for an address. The caller closes both, and reads the status with Await.
func (c Client) Ask(network, to string) (conn *Conn, status *os.File, err error) {
	if network == "udp" {
		end, far, err := Pair()
		if err != nil {
			return nil, nil, err
		}
		defer far.Close()
		session, status, err := c.Begin(far, to, 0)
		if err != nil {
			end.Close()
			return nil, nil, err
		}
		return &Conn{end, session}, status, nil
	}
	stream, err := c.Connect(network)
	if err != nil {
		return nil, nil, err
	}
	if status, err = header(stream, to, 0); err != nil {
		stream.Close()
		return nil, nil, err
	}
	return &Conn{UnixConn: stream}, status, nil
}

// Begin begins a session for UDP with the far end of a pair, which the caller keeps. from is the port of its header.
func (c Client) Begin(far *os.File, to string, from uint16) (session *net.UnixConn, status *os.File, err error) {
	if session, err = c.Connect("udp"); err != nil {
		return nil, nil, err
	}
	if status, err = header(session, to, from, far); err != nil {
		session.Close()
		return nil, nil, err
	}
	return session, status, nil
}

// Pair returns a pair of sockets for UDP: the end of the sandbox, and the far end.
func Pair() (end *net.UnixConn, far *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	near := os.NewFile(uintptr(pair[0]), "end")
	defer near.Close()
	far = os.NewFile(uintptr(pair[1]), "far end")
	c, err := net.FileConn(near)
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), far, nil
}

// header sends the header for an address, with a status pipe and other descriptors.
func header(conn *net.UnixConn, to string, from uint16, others ...*os.File) (status *os.File, err error) {
	status, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	h := ask.Header(netip.MustParseAddrPort(to), from)
	if err := Send(conn, h[:], append([]*os.File{w}, others...)...); err != nil {
		status.Close()
		return nil, err
	}
	return status, nil
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
func (c Client) Dial(network, to string) (*Conn, error) {
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
