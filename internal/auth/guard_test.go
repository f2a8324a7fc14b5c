package auth

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// guarded serves a handler behind a guard on loopback. It returns the address, and the secret of a token.
func guarded(t *testing.T, h http.HandlerFunc, opt Options) (g *Guard, addr, secret string) {
	t.Helper()
	if opt.Tokens == nil {
		opt.Tokens = &Tokens{Store: &shelf{}, Find: find}
	}
	if h == nil {
		h = func(w http.ResponseWriter, r *http.Request) {
			p := From(r.Context())
			fmt.Fprintf(w, "%s %q %v", p.Scope, r.Header.Get("Authorization"), p.TokenID != "")
		}
	}
	opt.Log = slog.New(slog.DiscardHandler)
	res, err := opt.Tokens.Create(t.Context(), wire.TokenRequest{Name: "t", Scope: "read"})
	if err != nil {
		t.Fatal(err)
	}
	g = NewGuard(h, opt)
	opt.Tokens.Revoked = []func(string){g.Drop}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := g.Server()
	go srv.Serve(g.Limit(ln))
	t.Cleanup(func() { srv.Close() })
	return g, ln.Addr().String(), res.Secret
}

// ask sends one request. It returns the answer's status, header and body.
func ask(t *testing.T, addr, method, path string, headers ...string) (int, http.Header, string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	text := method + " " + path + " HTTP/1.1\r\n"
	if !strings.HasPrefix(strings.Join(headers, "\n"), "Host:") {
		text += "Host: " + addr + "\r\n"
	}
	fmt.Fprintf(conn, "%s%s\r\n\r\n", text, strings.Join(append(headers, "Connection: close"), "\r\n"))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%s %s %q: %v", method, path, headers, err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(b)
}

func TestGuard_ChecksTokenHostAndOrigin(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, nil, Options{Hosts: []string{"box.example.com"}})
	token := "Authorization: Bearer " + secret
	for _, c := range []struct {
		name, method, path string
		headers            []string
		code               int
		says               string
	}{
		{"a token", "GET", "/v1/x", []string{token}, 200, `read "" true`},
		{"a scheme in lower case", "GET", "/v1/x", []string{"Authorization: bearer " + secret}, 200, `read`},
		{"no token", "GET", "/v1/x", nil, 401, "a token is required"},
		{"a wrong one", "GET", "/v1/x", []string{token + "x"}, 401, "invalid or was revoked"},
		{"another scheme", "GET", "/v1/x", []string{"Authorization: Basic " + secret}, 401, "a token is required"},
		{"two tokens", "GET", "/v1/x", []string{token, token}, 401, "a token is required"},
		{"a token in the query", "GET", "/v1/x?token=" + secret, nil, 401, "a token is required"},
		{"health", "GET", "/healthz", nil, 200, `none "" false`},
		{"readiness", "GET", "/readyz", nil, 200, `none "" false`},
		{"health with a token", "GET", "/healthz", []string{token}, 200, `none "" false`},
		{"docs", "GET", "/docs/x.js", nil, 200, `none`},
		{"a terminal", "GET", "/v1/attach/x?token=y", nil, 200, `none`},
		{"beyond a terminal", "GET", "/v1/attach/../x", nil, 401, "a token is required"},
		{"beyond a terminal, hidden", "GET", "/v1/attach/%2e%2e/x", nil, 401, "a token is required"},
		{"beyond docs", "GET", "/docs//../v1/x", nil, 401, "a token is required"},
		{"not quite docs", "GET", "/docsx", nil, 401, "a token is required"},
		{"not quite health", "GET", "/healthz/", nil, 401, "a token is required"},
		{"another name", "GET", "/v1/x", []string{"Host: evil.com", token}, 421, "unknown host name"},
		{"another name for health", "GET", "/healthz", []string{"Host: evil.com"}, 421, "unknown host name"},
		{"a URL with another name", "GET", "http://evil.com/v1/x", []string{token}, 421, "unknown host name"},
		{"an allowed name", "GET", "/v1/x", []string{"Host: box.example.com:1", token}, 200, "read"},
		{"localhost", "GET", "/v1/x", []string{"Host: localhost", token}, 200, "read"},
		{"a preview", "GET", "/v1/x", []string{"Host: 80--box.localhost", token}, 404, "does not serve previews"},
		{"another site's page", "GET", "/v1/x", []string{token, "Origin: http://evil.com"}, 403, "another site"},
		{"another site's page at a terminal", "GET", "/v1/attach/x", []string{"Origin: http://evil.com"}, 403,
			"another site"},
		{"a preview's page", "GET", "/v1/x", []string{token, "Origin: http://80--box.localhost"}, 403, "another site"},
		{"a page of nobody", "GET", "/v1/x", []string{token, "Origin: null"}, 403, "another site"},
		{"two origins", "GET", "/v1/x", []string{token, "Origin: http://" + addr, "Origin: http://evil.com"}, 403,
			"another site"},
		{"an image of another site", "GET", "/v1/x", []string{token, "Sec-Fetch-Site: cross-site"}, 403, "another site"},
		{"a preflight", "OPTIONS", "/v1/x", []string{"Origin: http://evil.com"}, 403, "another site"},
		{"our own page", "GET", "/v1/x", []string{token, "Origin: http://" + addr, "Sec-Fetch-Site: same-origin"},
			200, "read"},
		{"a link to the docs", "GET", "/docs", []string{"Sec-Fetch-Site: cross-site"}, 200, "none"},
		{"a tunnel", "CONNECT", "evil.com:443", []string{token}, 405, "is not supported"},
		{"an echo", "TRACE", "/v1/x", []string{token}, 405, "is not supported"},
	} {
		code, head, body := ask(t, addr, c.method, c.path, c.headers...)
		if code != c.code || !strings.Contains(body, c.says) {
			t.Errorf("%s: %d %s", c.name, code, body)
		}
		if code == 401 && !strings.HasPrefix(head.Get("WWW-Authenticate"), `Bearer realm="coppice"`) {
			t.Errorf("%s: %v", c.name, head)
		}
		if code >= 400 && (head.Get("Content-Type") != "application/problem+json" || strings.Contains(body, secret)) {
			t.Errorf("%s: %v %s", c.name, head, body)
		}
	}
}

func TestGuard_NoAuthStillChecksHostAndOrigin(t *testing.T) {
	t.Parallel()
	_, addr, _ := guarded(t, nil, Options{NoAuth: true})
	for want, headers := range map[int][]string{
		200: {"X: y"}, 421: {"Host: evil.com"}, 403: {"Origin: http://evil.com"},
	} {
		if code, _, body := ask(t, addr, "POST", "/v1/x", headers...); code != want || code == 200 &&
			!strings.HasPrefix(body, "admin") {
			t.Errorf("%q: %d %s", headers, code, body)
		}
	}
}

func TestGuard_LimitsFailedAttempts(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, nil, Options{Limits: Limits{Failed: Rate{0.001, 3}}})
	right := "Authorization: Bearer " + secret
	if code, _, _ := ask(t, addr, "GET", "/x", right); code != 200 {
		t.Fatal(code)
	}
	var last http.Header
	codes := ""
	for range 5 {
		other, _ := NewSecret()
		code, head, _ := ask(t, addr, "GET", "/x", "Authorization: Bearer "+other)
		codes, last = codes+fmt.Sprint(code, " "), head
	}
	if codes != "401 401 401 429 429 " || last.Get("Retry-After") == "" {
		t.Errorf("%s %v", codes, last)
	}
	if code, _, _ := ask(t, addr, "GET", "/x"); code != 429 {
		t.Errorf("no token: %d", code)
	}
	if code, _, body := ask(t, addr, "GET", "/x", right); code != 200 {
		t.Errorf("a valid token was refused: %d %s", code, body)
	}
}

func TestGuard_LimitsRatePerTokenAndAddress(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, nil, Options{Limits: Limits{Token: Rate{0.001, 2}, Open: Rate{0.001, 1}}})
	token := "Authorization: Bearer " + secret
	codes := ""
	for range 3 {
		code, head, _ := ask(t, addr, "GET", "/x", token)
		codes += fmt.Sprint(code, " ")
		if code == 429 && head.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	for _, path := range []string{"/openapi.json", "/openapi.json", "/healthz", "/readyz", "/readyz", "/openapi.json"} {
		code, _, _ := ask(t, addr, "GET", path)
		codes += fmt.Sprint(code, " ")
	}
	// Health checks are answered although the address has no requests left.
	if codes != "200 200 429 200 429 200 200 200 429 " {
		t.Error(codes)
	}
}

func TestBuckets_AreBounded(t *testing.T) {
	t.Parallel()
	b := newBuckets(Rate{1, 2}, 10)
	now := time.Now()
	for i := range 1000 {
		b.take(fmt.Sprint(i), now)
	}
	if len(b.of) > 10 {
		t.Errorf("%d keys", len(b.of))
	}
	if b.take("new", now) == 0 || b.spent("new", now) == 0 {
		t.Error("when the table is full, further addresses have no limit")
	}
	later := now.Add(time.Minute) // all buckets are full again
	if b.take("new", later) != 0 || len(b.of) != 1 {
		t.Errorf("%d keys", len(b.of))
	}
	r := newRecent(3)
	for i := range 10 {
		r.add(HashOf(fmt.Sprint(i)))
	}
	if len(r.when) != 3 || !r.has(HashOf("9")) || r.has(HashOf("0")) {
		t.Error("the remembered hashes are not the latest")
	}
}

func TestGuard_FailsClosedOnStoreError(t *testing.T) {
	t.Parallel()
	store := &shelf{}
	_, addr, secret := guarded(t, nil, Options{Tokens: &Tokens{Store: store, Find: find}})
	store.mu.Lock()
	store.err = errors.New("secret disk trouble")
	store.mu.Unlock()
	if code, _, body := ask(t, addr, "GET", "/x", "Authorization: Bearer "+secret); code != 503 ||
		strings.Contains(body, "disk") {
		t.Errorf("%d %s", code, body)
	}
}

func TestGuard_RecordsTokenUseOncePerMinute(t *testing.T) {
	t.Parallel()
	store := &shelf{}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	_, addr, secret := guarded(t, nil,
		Options{Tokens: &Tokens{Store: store, Find: find, Now: func() time.Time { return now }}})
	for range 3 {
		ask(t, addr, "GET", "/x", "Authorization: Bearer "+secret)
	}
	if tok := store.all[secret[4:12]]; store.writes != 1 || !tok.Used.Equal(now.Truncate(time.Minute)) {
		t.Errorf("%d writes, %v", store.writes, tok.Used)
	}
}

// closed waits until the server has closed a connection, and returns what the server sent.
func closed(t *testing.T, c net.Conn, within time.Duration) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(within))
	b, err := io.ReadAll(c)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("still open after %s; it sent %q", within, b)
	}
	return string(b)
}

func TestGuard_DisconnectsSlowSenders(t *testing.T) {
	t.Parallel()
	got := make(chan error, 8)
	_, addr, secret := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		got <- err
	}, Options{Limits: Limits{HeaderTime: time.Second, BodyIdle: time.Second, KeepAlive: time.Second}})
	dial := func(head string) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, head)
		return c
	}
	closed(t, dial("GET / HTTP/1.1\r\nHost: localhost\r\nX: "), 5*time.Second)
	closed(t, dial(""), 5*time.Second)
	const post = "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
	// The body of a request without a token is not read.
	if out := closed(t, dial(post+"\r\nx"), 10*time.Second); !strings.HasPrefix(out, "HTTP/1.1 401") {
		t.Errorf("%q", out)
	}
	closed(t, dial(post+"Authorization: Bearer "+secret+"\r\n\r\nx"), 10*time.Second)
	if err := <-got; err == nil {
		t.Error("an unfinished body was read")
	}
	// A body that arrives in parts may take longer than the timeout between two parts.
	c := dial("POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 12\r\nAuthorization: Bearer " +
		secret + "\r\n\r\n")
	for range 12 {
		io.WriteString(c, "x")
		time.Sleep(100 * time.Millisecond)
	}
	if err := <-got; err != nil {
		t.Errorf("a slow body: %v", err)
	}
	if out := closed(t, c, 5*time.Second); !strings.HasPrefix(out, "HTTP/1.1 200") {
		t.Errorf("%q", out)
	}
}

func TestGuard_AllowsSlowResponses(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
			io.WriteString(w, "cancelled")
		case <-time.After(1500 * time.Millisecond):
			io.WriteString(w, "done")
		}
	}, Options{Limits: Limits{BodyIdle: time.Second}})
	code, _, body := ask(t, addr, "POST", "/x", "Authorization: Bearer "+secret, "Content-Length: 0")
	if code != 200 || body != "done" {
		t.Errorf("%d %q", code, body)
	}
	req, _ := http.NewRequest("POST", "http://"+addr+"/x", strings.NewReader("body"))
	req.Header.Set("Authorization", "Bearer "+secret)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != "done" {
		t.Errorf("%q", b)
	}
}

func TestGuard_RefusesLongHeaders(t *testing.T) {
	t.Parallel()
	_, addr, secret := guarded(t, nil, Options{})
	if code, _, _ := ask(t, addr, "GET", "/x", "Authorization: Bearer "+secret,
		"X: "+strings.Repeat("x", 64<<10)); code != 431 {
		t.Error(code)
	}
}

func TestGuard_EvictsUnauthenticatedConnections(t *testing.T) {
	t.Parallel()
	inside := make(chan bool, 8)
	_, addr, secret := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			inside <- true
			<-r.Context().Done()
		}
	}, Options{Limits: Limits{Conns: 3}})
	var friends []net.Conn
	hello := func(path string) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if path != "" {
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, secret)
		}
		return c
	}
	friends = append(friends, hello("/wait"))
	<-inside
	first, second := hello(""), hello("")
	third := hello("") // the fourth connection: the first unproven one is closed
	closed(t, first, 5*time.Second)
	friends = append(friends, hello("/wait")) // the second one is closed
	<-inside
	closed(t, second, 5*time.Second)
	friends = append(friends, hello("/wait")) // the third one is closed
	<-inside
	closed(t, third, 5*time.Second)
	closed(t, hello(""), 5*time.Second) // all others are known: the new one is closed
	for _, c := range friends {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		b, err := io.ReadAll(c)
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("an authenticated connection was closed: %q %v", b, err)
		}
	}
}

func TestRevokedToken_EndsRequests(t *testing.T) {
	t.Parallel()
	inside, done := make(chan bool, 1), make(chan bool, 1)
	g, addr, secret := guarded(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		inside <- true
		io.Copy(io.Discard, c) // returns when the connection is closed
		<-r.Context().Done()
		done <- true
	}, Options{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c,
		"POST /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		secret)
	<-inside
	if err := g.opt.Tokens.Revoke(t.Context(), secret[4:12]); err != nil {
		t.Fatal(err)
	}
	<-done
	closed(t, c, 5*time.Second)
	if code, _, _ := ask(t, addr, "GET", "/x", "Authorization: Bearer "+secret); code != 401 {
		t.Error(code)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.uses) != 0 {
		t.Errorf("%d uses are left", len(g.uses))
	}
}

func TestExpiredToken_EndsRequests(t *testing.T) {
	t.Parallel()
	tokens := &Tokens{Store: &shelf{}, Find: find}
	_, addr, _ := guarded(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		Options{Tokens: tokens})
	res, err := tokens.Create(t.Context(), wire.TokenRequest{Name: "t", TTLMS: 300})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", res.Secret)
	closed(t, c, 10*time.Second)
}

func TestGuard_RemoteAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addr, forwarded string
		proxy           bool
		want            string
	}{
		{"192.0.2.1:5", "", false, "192.0.2.1"},
		{"192.0.2.1:5", "198.51.100.7", false, "192.0.2.1"},
		{"[2001:db8:1:2:3:4:5:6]:5", "", false, "2001:db8:1:2::/64"},
		{"[::ffff:192.0.2.1]:5", "", false, "192.0.2.1"},
		{"127.0.0.1:5", "1.1.1.1, 198.51.100.7", true, "198.51.100.7"},
		{"127.0.0.1:5", "nonsense", true, "127.0.0.1"},
		{"", "", false, "invalid IP"},
	} {
		g := NewGuard(nil, Options{BehindProxy: c.proxy})
		r, _ := http.NewRequestWithContext(context.Background(), "GET", "/", nil)
		r.RemoteAddr = c.addr
		if c.forwarded != "" {
			r.Header.Set("X-Forwarded-For", c.forwarded)
		}
		if got := g.remote(r); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
