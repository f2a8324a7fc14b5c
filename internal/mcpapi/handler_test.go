//go:build linux

package mcpapi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mcpapi"
)

// TestHTTP checks that the daemon serves MCP at its socket, with progress and cancellation.
func TestHTTP(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	socket := filepath.Join(d.home, "daemon.sock")
	web := &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return client.DialSocket(ctx, socket) }}}
	m := &model{t: t}
	m.connect(&mcp.StreamableClientTransport{Endpoint: "http://coppice/mcp", HTTPClient: web})
	text, _ := m.call("exec", args{"cmd": "for i in 1 2 3; do echo line $i; sleep 0.2; done"})
	holds(t, text, "line 3\n")
	if len(m.told()) == 0 {
		t.Error("no progress was reported")
	}
	text, _, failed := m.try("exec", args{"sandbox": "nowhere", "cmd": "true"})
	if !failed || !strings.HasPrefix(text, refusal) {
		t.Errorf("a failed call says %s", text)
	}

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := m.CallTool(ctx, &mcp.CallToolParams{Name: "exec", Arguments: args{"cmd": "exec sleep 1000"}})
		ended <- err
	}()
	procs := func() int {
		st, err := d.client.Status(t.Context(), sandbox)
		if err != nil {
			t.Fatal(err)
		}
		return st.Sandbox.Procs
	}
	eventually(t, "the command runs", func() bool { return procs() > 0 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has a result")
	}
	eventually(t, "all processes have exited", func() bool { return procs() == 0 })

	// A stopping daemon does not wait for the stream of a session.
	d.coppice("serve", "--stop")
	if told, err := os.ReadFile(filepath.Join(d.home, "daemon.log")); err != nil ||
		strings.Contains(string(told), "closed connections that were still being served") {
		t.Errorf("%v: %s", err, told)
	}
	_ = m.Close() // the daemon is gone
	d.coppice("ls")
}

// hall serves a handler that identifies callers by a header.
func hall(t *testing.T, opt mcpapi.HandlerOptions) *httptest.Server {
	t.Helper()
	nobody := client.New(client.Options{Socket: "/nonexistent"})
	opt.Caller = func(r *http.Request) (mcpapi.Caller, error) {
		who := r.Header.Get("Who")
		if who == "" {
			return mcpapi.Caller{}, fault.New(fault.Denied, "who is there?")
		}
		return mcpapi.Caller{ID: who, Options: mcpapi.Options{Client: nobody, Sandbox: who}}, nil
	}
	srv := httptest.NewServer(mcpapi.Handler(opt))
	t.Cleanup(srv.Close)
	return srv
}

// named adds the caller's name to each request.
type named string

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Who", string(n))
	return http.DefaultTransport.RoundTrip(r)
}

func enter(t *testing.T, srv *httptest.Server, who string) (*mcp.ClientSession, error) {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	return c.Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: srv.URL, HTTPClient: &http.Client{Transport: named(who)}, MaxRetries: -1},
		nil)
}

func TestSessions_BelongToCaller(t *testing.T) {
	t.Parallel()
	srv := hall(t, mcpapi.HandlerOptions{})
	alice, err := enter(t, srv, "alice")
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	for who, want := range map[string]int{"alice": http.StatusOK, "bob": http.StatusNotFound, "": http.StatusForbidden} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL,
			strings.NewReader(`{"jsonrpc":"2.0","id":7,"method":"ping"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Mcp-Session-Id", alice.ID())
		res, err := named(who).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q gets %d %s", who, res.StatusCode, body)
		}
	}
	if _, err := enter(t, srv, ""); err == nil {
		t.Error("a request without a caller has a session")
	}
}

func TestSessions_AreBounded(t *testing.T) {
	t.Parallel()
	srv := hall(t, mcpapi.HandlerOptions{Sessions: 2})
	for _, who := range []string{"alice", "bob"} {
		s, err := enter(t, srv, who)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	if s, err := enter(t, srv, "carol"); err == nil {
		s.Close()
		t.Fatal("three sessions were created")
	}
}

// TestSessions_EndWhenIdle checks that a session without requests ends, and that another can then be created.
func TestSessions_EndWhenIdle(t *testing.T) {
	t.Parallel()
	srv := hall(t, mcpapi.HandlerOptions{Sessions: 1, Idle: 2 * time.Second})
	alice, err := enter(t, srv, "alice")
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	eventually(t, "an idle session has ended", func() bool {
		s, err := enter(t, srv, "carol")
		if err != nil {
			return false
		}
		return s.Close() == nil
	})
}

// TestSessions_AreBoundedPerCaller checks that one caller cannot use all sessions.
func TestSessions_AreBoundedPerCaller(t *testing.T) {
	t.Parallel()
	srv := hall(t, mcpapi.HandlerOptions{Sessions: 3, Own: 2})
	for range 2 {
		s, err := enter(t, srv, "alice")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	if s, err := enter(t, srv, "alice"); err == nil {
		s.Close()
		t.Error("one caller has three sessions")
	}
	s, err := enter(t, srv, "bob")
	if err != nil {
		t.Fatalf("another caller was refused: %v", err)
	}
	s.Close()
}

// TestSessions_EndWithBase also checks that the sessions' streams end.
func TestSessions_EndWithBase(t *testing.T) {
	t.Parallel()
	base, cancel := context.WithCancelCause(t.Context())
	srv := hall(t, mcpapi.HandlerOptions{Base: base})
	s, err := enter(t, srv, "alice")
	if err != nil {
		t.Fatal(err)
	}
	cancel(errors.New("over"))
	eventually(t, "the session has ended", func() bool { return s.Ping(t.Context(), nil) != nil })
}
