package inspect

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestHalfClosedClient_GetsResponses checks that a client that closes its sending side after its requests receives
// their responses, although they are sent later, as by most servers.
func TestHalfClosedClient_GetsResponses(t *testing.T) {
	t.Parallel()
	const host = " HTTP/1.1\r\nHost: example.com\r\n"
	for _, x := range []struct {
		name, say string
		want      []string
	}{
		{"get", "GET /a" + host + "\r\n", []string{"GET /a 0"}},
		{"old", "GET /a HTTP/1.0\r\nHost: example.com\r\n\r\n", []string{"GET /a 0"}},
		{"post", "POST /a" + host + "Content-Length: 3\r\n\r\nabc", []string{"POST /a 3"}},
		{"chunks", "POST /a" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", []string{"POST /a 3"}},
		{"two", "GET /a" + host + "\r\nPOST /b" + host + "Content-Length: 2\r\n\r\nxy", []string{"GET /a 0", "POST /b 2"}},
		{"one and a part", "GET /a" + host + "\r\nGET /b" + host, []string{"GET /a 0"}},
		{"one and a part of a body", "GET /a" + host + "\r\nPOST /b" + host + "Content-Length: 9\r\n\r\nxy",
			[]string{"GET /a 0"}},
		{"part of a body", "POST /a" + host + "Content-Length: 9\r\n\r\nxy", nil},
	} {
		for _, by := range []string{"plain", "TLS", "TLS, and says so"} {
			t.Run(x.name+", "+by, func(t *testing.T) {
				t.Parallel()
				srv := httptest.NewUnstartedServer(nil)
				var w *world
				srv.Config.Handler = http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
					b, err := io.ReadAll(r.Body)
					select {
					case <-w.ended:
					case <-r.Context().Done():
					}
					for range 20 { // each write may fail if the client has disconnected
						if _, bad := io.WriteString(a, strings.Repeat(".", 4096)+"\n"); bad != nil {
							return
						}
					}
					if err == nil {
						fmt.Fprintf(a, "%s %s %d\n", r.Method, r.URL.Path, len(b))
					}
				})
				if by == "plain" {
					srv.Start()
				} else {
					srv.StartTLS()
				}
				t.Cleanup(srv.Close)
				w = way(t, srv, trusting(srv), &court{allow: all})
				c, err := net.Dial("tcp", w.at)
				must(t, err)
				defer c.Close()
				c.SetDeadline(time.Now().Add(20 * time.Second))
				over := c
				if by != "plain" {
					over = tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "example.com"})
				}
				_, err = io.WriteString(over, x.say)
				must(t, err)
				if by == "TLS, and says so" { // CloseWrite within TLS, which the gate does not look behind
					must(t, over.(*tls.Conn).CloseWrite())
					w.once.Do(func() { close(w.ended) })
				}
				must(t, c.(*net.TCPConn).CloseWrite())
				got, err := io.ReadAll(over)
				for _, want := range x.want {
					if !strings.Contains(string(got), want+"\n") {
						t.Errorf("no %q in %d bytes: %v", want, len(got), err)
					}
				}
				if n := strings.Count(string(got), " 200 OK\r\n"); n != len(x.want) {
					t.Errorf("%d answers, want %d", n, len(x.want))
				}
			})
		}
	}
}

func TestDisconnectedClient_EndsRequest(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	}))
	t.Cleanup(srv.Close)
	w := way(t, srv, nil, &court{allow: all})
	c, err := net.Dial("tcp", w.at)
	must(t, err)
	_, err = io.WriteString(c, "GET /a HTTP/1.1\r\nHost: example.com\r\n\r\n")
	must(t, err)
	<-begun
	must(t, c.(*net.TCPConn).SetLinger(0))
	must(t, c.Close())
	<-ended
}
