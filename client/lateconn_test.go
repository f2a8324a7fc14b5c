package client

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestWriteFile_ReturnsTheAnswerOfAServerThatReadsNoFurther covers a server that answers in the middle of an upload and
// closes the connection: the client returns that answer.
func TestWriteFile_ReturnsTheAnswerOfAServerThatReadsNoFurther(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(conn)
			if _, err := http.ReadRequest(r); err != nil {
				t.Error(err)
			}
			const body = `{"kind":"no_space","detail":"no space left on device"}`
			_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
			_, _ = io.CopyN(io.Discard, r, 1<<20)
			_, _ = io.WriteString(conn, "HTTP/1.1 507 Insufficient Storage\r\nContent-Type: application/problem+json\r\n"+
				"Connection: close\r\n\r\n"+body)
			// Unread input would reset the connection.
			_, _ = r.Discard(r.Buffered())
			conn.Close()
		}
	}()
	c := New(Options{Socket: socket})
	for range 50 {
		_, err := c.WriteFile(t.Context(), "box", "/f", endless{}, wire.WriteOptions{})
		if !IsKind(err, "no_space") {
			t.Fatalf("%v, want the server's answer", err)
		}
	}
}

// TestWriteFile_RefusesEarlyConfirmation checks that an answer which confirms an upload before all of it was sent is an
// error, as from a proxy that ends the request.
func TestWriteFile_RefusesEarlyConfirmation(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		r := bufio.NewReader(conn)
		if _, err := http.ReadRequest(r); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		_, _ = io.CopyN(io.Discard, r, 1<<20)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}")
		_, _ = r.Discard(r.Buffered())
		conn.Close()
	}()
	c := New(Options{Socket: socket})
	if _, err := c.WriteFile(t.Context(), "box", "/f", endless{}, wire.WriteOptions{}); !IsKind(err, KindUnavailable) {
		t.Fatalf("%v, want unavailable", err)
	}
}
