package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// ported is an engine with one process and one port, 3000, to which dial connects.
type ported struct {
	*fake
	dial func() (net.Conn, error)
}

func (p ported) Processes(_ context.Context, name string) (wire.ProcessesResult, error) {
	p.did("processes", name)
	return wire.ProcessesResult{}, p.err
}

func (p ported) SignalProcess(_ context.Context, name string, pid int, sig wire.ProcessSignal) error {
	p.did("signal", name, pid, sig)
	return p.err
}

func (p ported) Ports(_ context.Context, name string) (wire.PortsResult, error) {
	p.did("ports", name)
	return wire.PortsResult{}, p.err
}

func (p ported) DialPort(_ context.Context, name string, port int) (net.Conn, error) {
	p.did("dial", name, port)
	if port != 3000 {
		return nil, fault.New(fault.NotFound, "nothing listens on port %d", port).WithHint("do something")
	}
	return p.dial()
}

func (p ported) Preview(_ context.Context, name string, port int, ttl time.Duration) (wire.PreviewResult, error) {
	p.did("preview", name, port, ttl)
	return wire.PreviewResult{URL: "http://x/"}, p.err
}

// inside starts a server that stands for one in a sandbox; talk serves one connection.
func inside(t *testing.T, talk func(net.Conn)) ported {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go talk(c)
		}
	}()
	return ported{&fake{}, func() (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) }}
}

func TestProcessesAndPortsReachTheEngine(t *testing.T) {
	t.Parallel()
	e := ported{fake: &fake{}}
	h := httpapi.New(httpapi.Options{Roles: roles(e), Previews: e, Log: slog.New(slog.DiscardHandler)})
	for _, tc := range []struct{ method, path, body, did, answer string }{
		{"GET", "/processes", "", `processes["a"]`, `200 {"processes":[]}`},
		{"POST", "/processes/7/signal", `{"name":"INT","start":9}`, `signal["a",7,{"name":"INT","start":9}]`, `204 `},
		{"POST", "/processes/7/signal", "", `signal["a",7,{}]`, `204 `},
		{"GET", "/ports", "", `ports["a"]`, `200 {"ports":[]}`},
		{"POST", "/ports/3000/preview", `{"ttl_ms":5000}`, `preview["a",3000,5000000000]`,
			`200 {"url":"http://x/","expires":"0001-01-01T00:00:00Z"}`},
		{"POST", "/ports/3000/preview", "", `preview["a",3000,0]`,
			`200 {"url":"http://x/","expires":"0001-01-01T00:00:00Z"}`},
		{"POST", "/processes/0/signal", "", "", `400 `}, {"POST", "/processes/-1/signal", "", "", `400 `},
		{"POST", "/processes/x/signal", "", "", `400 `},
		{"POST", "/ports/0/preview", "", "", `400 `}, {"POST", "/ports/65536/preview", "", "", `400 `},
		{"POST", "/ports/3000/preview", `{"ttl_ms":-1}`, "", `400 `},
		{"POST", "/ports/3000/preview", `{"ttl_ms":9223372036854775807}`, "", `400 `},
		{"POST", "/ports/3000/connect", "", "", `426 `}, {"POST", "/ports/3000/preview", `{`, "", `400 `},
	} {
		e.calls = nil
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, "/v1/sandboxes/a"+tc.path, strings.NewReader(tc.body)).
			WithContext(auth.With(t.Context(), auth.Owner())))
		if got := fmt.Sprintf("%d %s", w.Code, strings.TrimSpace(w.Body.String())); e.last() != tc.did ||
			!strings.HasPrefix(got, tc.answer) {
			t.Errorf("%s %s: %q, did %q", tc.method, tc.path, got, e.last())
		}
		if w.Code >= 400 && !strings.Contains(w.Body.String(), `"kind":"invalid"`) {
			t.Errorf("%s %s: %s", tc.method, tc.path, w.Body)
		}
	}
	bare := httpapi.New(httpapi.Options{Roles: roles(e), Log: slog.New(slog.DiscardHandler)})
	w := httptest.NewRecorder()
	bare.ServeHTTP(w, httptest.NewRequest("POST", "/v1/sandboxes/a/ports/3000/preview", nil).
		WithContext(auth.With(t.Context(), auth.Owner())))
	if w.Code != http.StatusNotImplemented {
		t.Errorf("without links: %d", w.Code)
	}
}

func TestDialPort_SupportsHalfClose(t *testing.T) {
	t.Parallel()
	e := inside(t, func(c net.Conn) {
		defer c.Close()
		all, err := io.ReadAll(c) // until the client closes its half
		if err != nil {
			t.Error(err)
		}
		for range 100 {
			_, _ = c.Write(all)
		}
	})
	c := serve(t, e)
	conn, err := c.DialPort(t.Context(), "a", 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := strings.Repeat("0123456789", 10_000)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(conn); err != nil || string(all) != strings.Repeat(text, 100) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
	if _, err := c.DialPort(t.Context(), "a", 80); !client.IsKind(err, client.KindNotFound) || err.(*client.Error).
		Hint == "" {
		t.Errorf("%v", err)
	}
	if _, err := c.DialPort(t.Context(), "a", 0); !client.IsKind(err, client.KindInvalid) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.DialPort(ctx, "a", 3000); !client.IsKind(err, client.KindCancelled) &&
		!client.IsKind(err, client.KindUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestDialPort_ServerSpeaksAndClosesFirst(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 1)
	e := inside(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
		_ = c.(*net.TCPConn).CloseWrite()
		all, _ := io.ReadAll(c)
		heard <- string(all)
		c.Close()
	})
	conn, err := serve(t, e).DialPort(t.Context(), "a", 3000)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := io.ReadAll(conn); string(all) != "hello" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	_, _ = io.WriteString(conn, "bye")
	conn.Close()
	if got := <-heard; got != "bye" {
		t.Errorf("%q", got)
	}
}

// TestDialPort_EndsOnShutdown checks that stopping the daemon ends connections to ports, and
// that none of them delays it.
func TestDialPort_EndsOnShutdown(t *testing.T) {
	t.Parallel()
	e := inside(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c); c.Close() })
	base, stop := context.WithCancelCause(context.Background())
	api := httpapi.New(httpapi.Options{Roles: roles(e), Base: base, Log: slog.New(slog.DiscardHandler)})
	ln := listen(t)
	srv := &http.Server{Handler: api, BaseContext: as(auth.Owner())}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	conn, err := client.New(client.Options{Socket: ln.Addr().String()}).DialPort(t.Context(), "a", 3000)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := api.Active(); n != 1 {
		t.Errorf("%d requests are active", n)
	}
	stop(errors.New("the daemon stops"))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection still works")
	}
	for n, _ := api.Active(); n > 0; n, _ = api.Active() {
		time.Sleep(time.Millisecond)
	}
}
