package httpapi_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

func TestReadyz_AnswersWithReason(t *testing.T) {
	t.Parallel()
	var why error
	h := newServer(auth.Principal{}, httpapi.Options{Roles: roles(&fake{}),
		Ready: func(context.Context) error { return why }})
	if w := ask(h, "GET", "/readyz", ""); w.Code != http.StatusOK ||
		strings.TrimSpace(w.Body.String()) != `{"ready":true}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	why = fault.New(fault.Unavailable, "the daemon is stopping")
	if w := ask(h, "GET", "/readyz", ""); w.Code != http.StatusServiceUnavailable ||
		!strings.Contains(w.Body.String(), `"detail":"the daemon is stopping"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(h, "GET", "/healthz", ""); w.Code != http.StatusOK {
		t.Errorf("health while stopping: %d %s", w.Code, w.Body)
	}
}

func TestStarting_IsAliveAndNotReady(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/healthz", 200}, {"HEAD", "/healthz", 200}, {"POST", "/healthz", 503}, {"GET", "/healthz/x", 503},
		{"GET", "/readyz", 503}, {"GET", "/v1/sandboxes", 503}, {"POST", "/v1/sandboxes", 503}, {"GET", "/openapi.json", 503},
		{"GET", "/mcp", 503},
	} {
		w := httptest.NewRecorder()
		httpapi.Starting().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, nil))
		if w.Code != tc.want || tc.want == 503 && (w.Header().Get("Retry-After") == "" ||
			!strings.Contains(w.Body.String(), "the daemon is starting")) {
			t.Errorf("%s %s: %d %v %s", tc.method, tc.path, w.Code, w.Header(), w.Body)
		}
	}
}

// TestStarting_ReadsNoBody checks that a request whose body never comes does not hold its connection.
func TestStarting_ReadsNoBody(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(httpapi.Starting())
	defer srv.Close()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 503 ") {
		t.Errorf("%q, %v", b, err)
	}
}
