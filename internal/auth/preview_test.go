package auth

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// previewHost is a host of Options.Preview.
const previewHost = "Host: 80--box.localhost"

func TestPreview_AuthenticatesToken(t *testing.T) {
	t.Parallel()
	preview := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Proved(r.Context())
		fmt.Fprintf(w, "%s %q", From(r.Context()).Scope, r.Header.Get("Authorization"))
	})
	g, addr, secret := guarded(t, nil, Options{Preview: preview, Limits: Limits{Failed: Rate{0.001, 3}}})
	token := "Authorization: Bearer " + secret
	wrong := token[:len(token)-4] + "AAAA"
	for _, c := range []struct {
		name    string
		headers []string
		code    int
		says    string
	}{
		{"nothing", nil, 200, `none ""`},
		{"a token", []string{token}, 200, `read ""`},
		{"the application's own", []string{"Authorization: Bearer its-own"}, 200, `none "Bearer its-own"`},
		{"its own password", []string{"Authorization: Basic YTpi"}, 200, `none "Basic YTpi"`},
		{"a wrong token", []string{wrong}, 401, "invalid or was revoked"},
		{"what looks like one", []string{"Authorization: bearer cpc_"}, 401, "invalid or was revoked"},
		{"two", []string{token, "Authorization: Bearer its-own"}, 400, "more than one"},
		{"two of its own", []string{"Authorization: Bearer a", "Authorization: Bearer b"}, 400, "more than one"},
		{"a third wrong one", []string{wrong}, 401, "invalid or was revoked"},
		{"one too many", []string{wrong}, 429, "too many invalid tokens"},
		{"the right one then", []string{token}, 200, `read ""`},
		{"a link then", []string{"Cookie: a=b"}, 200, `none ""`},
	} {
		code, _, body := ask(t, addr, "GET", "/", append([]string{previewHost}, c.headers...)...)
		if code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
	}
	// A request that a token admitted ends with the token.
	if err := g.opt.Tokens.Revoke(t.Context(), secret[4:12]); err != nil {
		t.Fatal(err)
	}
	if code, _, body := ask(t, addr, "GET", "/", previewHost, token); code != 401 {
		t.Errorf("revoked: %d %s", code, body)
	}
}

// TestPreview_KeepsProvedConnections checks that beyond the maximum number of connections, one that sent a link
// or token to a preview stays, and an unproven one is closed.
func TestPreview_KeepsProvedConnections(t *testing.T) {
	t.Parallel()
	inside := make(chan bool)
	preview := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/good" {
			Proved(r.Context())
		}
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		inside <- true
		<-r.Context().Done()
	})
	_, addr, _ := guarded(t, nil, Options{Preview: preview, Limits: Limits{Conns: 2}})
	show := func(path string) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\n%s\r\n\r\n", path, previewHost)
		<-inside
		return c
	}
	good, bad := show("/good"), show("/bad")
	show("/good") // the third connection: the unproven one is closed
	_ = bad.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(bad); err != nil {
		t.Errorf("the unproven connection stays: %v", err)
	}
	one := make([]byte, 1)
	if _, err := good.Read(one); err != nil {
		t.Errorf("a proved connection was closed: %v", err)
	}
}

// TestTicket_EndsWithItsToken covers a request that was admitted by a ticket: it sent no token itself, and must
// end with the ticket's token.
func TestTicket_EndsWithItsToken(t *testing.T) {
	t.Parallel()
	inside, done := make(chan error, 1), make(chan bool, 1)
	g, addr, secret := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		ctx, end, err := As(r.Context(), r.URL.Query().Get("id"))
		if err != nil {
			inside <- err
			return
		}
		defer end()
		w.WriteHeader(200)
		_ = http.NewResponseController(w).Flush()
		inside <- nil
		<-ctx.Done()
		done <- true
	}, Options{})
	id := secret[4:12]
	open := func(id string) (net.Conn, error) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "GET /v1/attach/x?id=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", id)
		return c, <-inside
	}
	c, err := open(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.opt.Tokens.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	<-done
	closed(t, c, 5*time.Second)
	if _, err := open(id); !fault.Is(err, fault.Denied) {
		t.Errorf("a ticket of a token that was revoked: %v", err)
	}
	c, err = open("")
	if err != nil {
		t.Errorf("without a token ID: %v", err)
	}
	c.Close()
	<-done
}

// TestGuard_RefusesAmbiguousRequests checks that a message that two parsers could read differently is refused, or
// read in the one safe way.
func TestGuard_RefusesAmbiguousRequests(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, nil, Options{})
	token := "Authorization: Bearer " + secret + "\r\n"
	for name, text := range map[string]string{
		"two hosts":                "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n" + token + "\r\n",
		"no host":                  "GET /v1/x HTTP/1.1\r\n" + token + "\r\n",
		"an empty host":            "GET /v1/x HTTP/1.1\r\nHost:\r\n" + token + "\r\n",
		"no host in HTTP/1.0":      "GET /v1/x HTTP/1.0\r\n" + token + "\r\n",
		"a trailing dot":           "GET /v1/x HTTP/1.1\r\nHost: localhost.\r\n" + token + "\r\n",
		"a number for an address":  "GET /v1/x HTTP/1.1\r\nHost: 2130706433\r\n" + token + "\r\n",
		"a short address":          "GET /v1/x HTTP/1.1\r\nHost: 127.1\r\n" + token + "\r\n",
		"any address":              "GET /v1/x HTTP/1.1\r\nHost: 0.0.0.0\r\n" + token + "\r\n",
		"any IPv6 address":         "GET /v1/x HTTP/1.1\r\nHost: [::]\r\n" + token + "\r\n",
		"an address with a zone":   "GET /v1/x HTTP/1.1\r\nHost: [::1%25lo]\r\n" + token + "\r\n",
		"a user":                   "GET /v1/x HTTP/1.1\r\nHost: localhost@evil.example\r\n" + token + "\r\n",
		"two ports":                "GET /v1/x HTTP/1.1\r\nHost: localhost:1:2\r\n" + token + "\r\n",
		"a name with our name":     "GET /v1/x HTTP/1.1\r\nHost: localhost.evil.example\r\n" + token + "\r\n",
		"a name that ends in ours": "GET /v1/x HTTP/1.1\r\nHost: evillocalhost\r\n" + token + "\r\n",
		"HTTP/2 without TLS":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a name of HTTP/2":         "GET /v1/x HTTP/2.0\r\nHost: localhost\r\n" + token + "\r\n",
		"a space before the colon": "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer " + secret + "\r\n\r\n",
		"a folded header": "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nX: y\r\n Authorization: Bearer " +
			secret + "\r\n\r\n",
		"a bare CR": "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nX: y\rAuthorization: Bearer " +
			secret + "\r\n\r\n",
		"lengths that differ": "POST /v1/x HTTP/1.1\r\nHost: localhost\r\n" + token +
			"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"a length below zero": "POST /v1/x HTTP/1.1\r\nHost: localhost\r\n" + token + "Content-Length: -1\r\n\r\n",
		"an unknown encoding": "POST /v1/x HTTP/1.1\r\nHost: localhost\r\n" + token +
			"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"a token that goes no hop":  "GET /v1/x HTTP/1.1\r\nHost: localhost\r\nConnection: Authorization\r\n\r\n",
		"everything, with no token": "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"everything, of another":    "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, text)
		line := make([]byte, len("HTTP/1.1 200"))
		n, _ := io.ReadFull(c, line)
		if got := string(line[:n]); n > 0 && !strings.HasPrefix(got, "HTTP/1.1 4") && !strings.HasPrefix(got, "HTTP/1.1 5") &&
			!strings.HasPrefix(got, "HTTP/1.0 4") {
			t.Errorf("%s: %s", name, got)
		}
		c.Close()
	}
	// An upgrade to HTTP/2 is ignored, and the request is served as HTTP/1.1.
	if code, head, body := ask(t, addr, "GET", "/v1/x", "Host: localhost", "Upgrade: h2c",
		"HTTP2-Settings: AAMAAABkAAQAAP__",
		"Authorization: Bearer "+secret); code != 200 || head.Get("Upgrade") != "" || !strings.HasPrefix(body, "read") {
		t.Errorf("h2c: %d %v %s", code, head, body)
	}
}
