//go:build linux && (amd64 || arm64)

package entrance

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
)

// conn is a connection whose direction to the server can be ended.
type conn interface {
	net.Conn
	CloseWrite() error
}

// routes runs each over two ways to the same server: over loopback, and through an entrance and its gate, all in this
// process. each gets a function that connects.
func routes(b *testing.B, serve func(*net.TCPConn), each func(b *testing.B, connect func() (conn, error))) {
	dial := toServer(b, serve)
	b.Run("loopback", func(b *testing.B) {
		each(b, func() (conn, error) {
			c, err := dial(context.Background(), "tcp", netip.AddrPort{})
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		})
	})
	b.Run("entrance", func(b *testing.B) {
		s := open(b, dial)
		each(b, func() (conn, error) { return s.Dial("tcp", host) })
	})
}

// chunk is how many bytes an operation of BenchmarkThroughput moves.
const chunk = 64 << 10

// BenchmarkThroughput moves 64 KiB per operation, out of a sandbox and into it.
func BenchmarkThroughput(b *testing.B) {
	b.Run("out", func(b *testing.B) {
		routes(b, func(c *net.TCPConn) {
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 4*chunk))
		}, func(b *testing.B, connect func() (conn, error)) {
			c, err := connect()
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, chunk)
			b.SetBytes(chunk)
			for b.Loop() {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			if err := c.CloseWrite(); err != nil {
				b.Fatal(err)
			}
			if _, err := c.Read(buf); err != io.EOF { // the server has everything
				b.Fatal(err)
			}
		})
	})
	b.Run("in", func(b *testing.B) {
		routes(b, func(c *net.TCPConn) {
			buf := make([]byte, chunk)
			for err := error(nil); err == nil; {
				_, err = c.Write(buf)
			}
		}, func(b *testing.B, connect func() (conn, error)) {
			c, err := connect()
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, chunk)
			b.SetBytes(chunk)
			for b.Loop() {
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkConnect opens and closes one connection per operation.
func BenchmarkConnect(b *testing.B) {
	routes(b, echo, func(b *testing.B, connect func() (conn, error)) {
		for b.Loop() {
			c, err := connect()
			if err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
}

// BenchmarkRoundTrip sends one byte there and back per operation, over one connection.
func BenchmarkRoundTrip(b *testing.B) {
	routes(b, echo, func(b *testing.B, connect func() (conn, error)) {
		c, err := connect()
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 1)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
