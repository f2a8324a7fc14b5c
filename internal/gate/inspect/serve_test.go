package inspect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// court is the Judge of the tests.
type court struct {
	allow func(Request) bool
	most  int64 // limit of the bytes sent by one request; 0 is none
	// mostIn is the limit of the bytes of all answers; 0 is none.
	mostIn int64

	mu       sync.Mutex
	denied   []string // guarded by mu
	ended    []string // guarded by mu
	trailers []string // guarded by mu
	out      int64    // guarded by mu
	in       int64    // guarded by mu
}

func (c *court) Begin(_ context.Context, q Request) (Exchange, *Denial) {
	if !c.allow(q) {
		c.Deny(q, "the court says no")
		return nil, &Denial{Status: 403, Rule: "rule 1", Reason: "the court says no", Hint: "appeal"}
	}
	return &trial{c: c, q: q}, nil
}

func (c *court) Deny(q Request, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.denied = append(c.denied, q.Method+" "+q.Host.String()+q.Path+": "+reason)
}

func (c *court) has(t *testing.T, what string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !strings.Contains(strings.Join(c.denied, "\n"), what) {
		t.Errorf("%q was not recorded: %q", what, c.denied)
	}
}

type trial struct {
	c   *court
	q   Request
	mu  sync.Mutex
	out int64 // guarded by mu
}

func (x *trial) Sent([]byte) *Denial { return nil }

func (x *trial) Fill(*http.Request) *Denial { return nil }

func (x *trial) Clean(http.Header) {}

func (x *trial) Search(io.Reader, http.Header) (io.Reader, *Denial) { return nil, nil }

func (x *trial) Trailer(h http.Header) *Denial {
	x.c.mu.Lock()
	x.c.trailers = append(x.c.trailers, fmt.Sprint(h))
	x.c.mu.Unlock()
	if h.Get("X-Bad") == "" {
		return nil
	}
	x.c.Deny(x.q, "a bad trailer")
	return &Denial{Status: 403, Reason: "a bad trailer"}
}

func (x *trial) Spend(out, in int64) *Denial {
	x.mu.Lock()
	x.out += out
	over := x.c.most > 0 && x.out > x.c.most
	x.mu.Unlock()
	if over {
		x.c.Deny(x.q, "too large")
		return &Denial{Status: 413, Reason: "too large"}
	}
	x.c.mu.Lock()
	x.c.out += out
	x.c.in += in
	over = x.c.mostIn > 0 && x.c.in > x.c.mostIn
	x.c.mu.Unlock()
	if over {
		x.c.Deny(x.q, "used up")
		return &Denial{Status: 403, Reason: "used up"}
	}
	return nil
}

func (x *trial) End(status int, reason string) {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	x.c.ended = append(x.c.ended, fmt.Sprintf("%s %s %d %s", x.q.Method, x.q.Path, status, reason))
}

// world is a server and an inspected connection to it.
type world struct {
	*court
	at     string // address that the clients connect to
	roots  *x509.CertPool
	errs   chan error
	secure bool
	ended  chan struct{} // closed when Serve has read the first client's EOF
	once   sync.Once
}

// seen is the inside connection of a world; it signals when EOF was read.
type seen struct {
	*net.TCPConn
	w *world
}

func (s seen) Read(p []byte) (int, error) {
	n, err := s.TCPConn.Read(p)
	if errors.Is(err, io.EOF) {
		s.w.once.Do(func() { close(s.w.ended) })
	}
	return n, err
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func name(t testing.TB, s string) policy.Host {
	t.Helper()
	h, err := policy.ParseHost(s)
	must(t, err)
	return h
}

// way serves an inspected connection to srv, which is for example.com.
func way(t testing.TB, srv *httptest.Server, roots *x509.CertPool, c *court) *world {
	t.Helper()
	a, err := NewAuthority(time.Now())
	must(t, err)
	w := &world{court: c, roots: x509.NewCertPool(), errs: make(chan error, 100), secure: srv.TLS != nil,
		ended: make(chan struct{})}
	if !w.roots.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("invalid PEM")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.at = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				out, err := net.Dial("tcp", srv.Listener.Addr().String())
				if err != nil {
					in.Close()
					return
				}
				o := Options{Inside: seen{in.(*net.TCPConn), w}, Outside: out, Port: 443, Authority: a, Roots: roots, Judge: c,
					Now: time.Now, Patience: 10 * time.Second}
				if w.secure {
					o.Name = name(t, "example.com")
				} else {
					o.Names, o.Port = []policy.Host{name(t, "example.com"), name(t, "b.example")}, 80
				}
				if err := Serve(ctx, o); err != nil {
					w.errs <- err
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return w
}

// client returns an HTTP client inside, which trusts the authority.
func (w *world) client(t testing.TB, h2 bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetHTTP2(h2)
	tr := &http.Transport{
		Protocols: &p, TLSClientConfig: &tls.Config{RootCAs: w.roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", w.at)
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// ws requests a WebSocket, sends s over it, and returns the reply.
func (w *world) ws(t testing.TB, s string) string {
	t.Helper()
	c, err := net.Dial("tcp", w.at)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	x := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "example.com"})
	_, err = io.WriteString(x,
		"GET /ws HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	must(t, err)
	r := bufio.NewReader(x)
	a, err := http.ReadResponse(r, nil)
	must(t, err)
	defer a.Body.Close()
	if a.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v", a)
	}
	_, err = io.WriteString(x, s)
	must(t, err)
	b, _ := io.ReadAll(r)
	return string(b)
}

// ask makes a request and returns the answer.
func ask(t testing.TB, c *http.Client, req *http.Request) (int, string) {
	t.Helper()
	r, err := c.Do(req)
	must(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(b)
}

// raw sends s over a new connection and returns the answer.
func (w *world) raw(t testing.TB, s string) string {
	t.Helper()
	c, err := net.Dial("tcp", w.at)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	if w.secure {
		c = tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "example.com"})
	}
	_, err = io.WriteString(c, s)
	must(t, err)
	b, _ := io.ReadAll(c)
	return string(b)
}

// website returns the handler of the test servers.
func website(t testing.TB) http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Saw", fmt.Sprint(r.Proto, " ", r.Host, " ", r.RequestURI, " ", r.Header))
		w.Header().Set("Trailer", "X-End")
		_ = http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
		w.Header().Set("X-End", "trailer")
	})
	m.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	m.HandleFunc("/close", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		io.WriteString(w, "bye")
	})
	m.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://other.example/", http.StatusFound)
	})
	m.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := b.ReadString('\n')
		io.WriteString(c, "you said "+line)
	})
	return m
}

// secure starts a server with TLS that supports both versions of HTTP, or HTTP/1.1 alone.
func secure(t testing.TB, h2 bool) (*httptest.Server, *x509.CertPool) {
	srv := httptest.NewUnstartedServer(website(t))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.EnableHTTP2 = h2
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv, trusting(srv)
}

// trusting returns the certificate pool for srv as example.com; nil without TLS.
func trusting(srv *httptest.Server) *x509.CertPool {
	if srv.TLS == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return roots
}

func all(Request) bool { return true }

func TestServe_ForwardsRequests(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			t.Parallel()
			srv, roots := secure(t, h2)
			w := way(t, srv, roots, &court{allow: func(q Request) bool { return q.Method != "DELETE" && q.Path != "/secret" }})
			c := w.client(t, h2)
			body := strings.Repeat("0123456789", 100_000)
			req, err := http.NewRequest("POST", "https://example.com/echo?b=2;x&a=%zz", io.MultiReader(strings.NewReader(body)))
			must(t, err)
			req.Header = http.Header{"User-Agent": nil, "X-Forwarded-For": {"1.2.3.4"}, "X-Mine": {"a", "b"}}
			r, err := c.Do(req)
			must(t, err)
			defer r.Body.Close()
			got, err := io.ReadAll(r.Body)
			must(t, err)
			saw := r.Header.Get("X-Saw")
			if string(got) != body || r.Trailer.Get("X-End") != "trailer" {
				t.Errorf("%d bytes, trailer %v", len(got), r.Trailer)
			}
			if !strings.Contains(saw, "example.com /echo?b=2;x&a=%zz ") || !strings.Contains(saw, "X-Forwarded-For:[1.2.3.4]") ||
				!strings.Contains(saw, "X-Mine:[a b]") || strings.Contains(saw, "User-Agent") ||
				h2 != strings.HasPrefix(saw, "HTTP/2.0") {
				t.Errorf("the server saw %s", saw)
			}
			for _, x := range [][2]string{{"DELETE", "/echo"}, {"GET", "/secret"}} {
				req, err := http.NewRequest(x[0], "https://example.com"+x[1], strings.NewReader("abc"))
				must(t, err)
				if code, got := ask(t, c, req); code != 403 ||
					!strings.Contains(got, "reason: the court says no\nrule: rule 1\nhint: appeal\n") {
					t.Errorf("%v: %d %s", x, code, got)
				}
			}
			// A streamed response arrives while it is being sent, and a redirect is left to the client.
			slow, err := c.Get("https://example.com/slow")
			must(t, err)
			line, err := bufio.NewReader(slow.Body).ReadString('\n')
			if err != nil || line != "first\n" {
				t.Errorf("%q %v", line, err)
			}
			slow.Body.Close()
			away, err := c.Get("https://example.com/redirect")
			must(t, err)
			away.Body.Close()
			if away.Header.Get("Location") != "https://other.example/" {
				t.Errorf("%+v", away)
			}
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					r, err := c.Post("https://example.com/echo", "", strings.NewReader("hello"))
					if err != nil {
						t.Error(err)
						return
					}
					defer r.Body.Close()
					if b, err := io.ReadAll(r.Body); err != nil || string(b) != "hello" {
						t.Errorf("%q %v", b, err)
					}
				})
			}
			wg.Wait()
			for range 3 { // the inside connection ends with the outside one
				r, err := c.Get("https://example.com/close")
				must(t, err)
				if b, err := io.ReadAll(r.Body); err != nil || string(b) != "bye" {
					t.Errorf("%q %v", b, err)
				}
				r.Body.Close()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.out < int64(len(body)) || w.in < int64(len(body)) {
				t.Errorf("%d out, %d in", w.out, w.in)
			}
		})
	}
}

func TestServe_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: all})
	plain := httptest.NewServer(website(t))
	t.Cleanup(plain.Close)
	p := way(t, plain, nil, &court{allow: all})
	const ok, end = "GET /echo HTTP/1.1\r\nHost: example.com\r\n", "Connection: close\r\n\r\n"
	for _, x := range []*world{w, p} {
		if got := x.raw(t, ok+end); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("%q", got)
		}
		for head, why := range map[string]string{
			"GET /echo HTTP/1.1\r\nHost: other.example\r\n":                      "another host",
			"GET /echo HTTP/1.1\r\nHost: example.com:8443\r\n":                   "another host",
			"GET /echo HTTP/1.1\r\nHost: example.com.\r\n":                       "another host",
			"GET /echo HTTP/1.1\r\nHost: user@example.com\r\n":                   "no valid Host",
			"GET /echo HTTP/1.1\r\nHost: example.com, other.example\r\n":         "no valid Host",
			"GET /%zz HTTP/1.1\r\nHost: example.com\r\n":                         "not a path",
			"GET /echo HTTP/1.1\r\nHost:\r\n":                                    "another host",
			"GET https://example.com/echo HTTP/1.1\r\nHost: example.com\r\n":     "not a path",
			"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n":          "CONNECT",
			"GET /echo HTTP/1.1\r\nHost: example.com\r\nHost: other.example\r\n": "more than one",
			ok + "X-HTTP-Method-Override: DELETE\r\n":                            "X-Http-Method-Override",
			ok + "X-Original-URL: /secret\r\n":                                   "X-Original-Url",
			ok + "X_HTTP_Method-Override: DELETE\r\n":                            "X-Http-Method-Override",
			ok + "x_original_url: /secret\r\n":                                   "X-Original-Url",
			ok + "Upgrade: h2c\r\n":                                              "WebSocket",
			ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n":           "ambiguous or invalid length",
			"GET /a|b HTTP/1.1\r\nHost: example.com\r\n":                         "escaped",
			ok + "Expect: 200-ok\r\n":                                            "an expectation",
			ok + "Expect: 100-continue\r\nExpect: 200-ok\r\n":                    "an expectation",
			ok + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n":     "ambiguous or invalid length",
			"GET /echo#x HTTP/1.1\r\nHost: example.com\r\n":                      "escaped",
		} {
			if got := x.raw(t, head+end); !strings.HasPrefix(got, "HTTP/1.1 403") && !strings.HasPrefix(got, "HTTP/1.1 400") {
				t.Errorf("%q: %q", head, got)
			}
			x.has(t, why)
			x.mu.Lock()
			x.denied = nil
			x.mu.Unlock()
		}
		// A request smuggled after an invalid body is not forwarded.
		got := x.raw(t,
			"POST /echo HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"+ok+end)
		if strings.Contains(got, "abcdef") || strings.HasPrefix(got, "HTTP/1.1 200") && strings.HasSuffix(got, "0\r\n\r\n") {
			t.Errorf("%q", got)
		}
		x.has(t, "a chunk")
	}
	if got := p.raw(t, "GET /echo HTTP/1.1\r\nHost: b.example:80\r\n"+end); !strings.Contains(got, " b.example:80 /echo") {
		t.Errorf("another name of the address: %q", got)
	}
	if got := p.raw(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); strings.Contains(got, "200") {
		t.Errorf("%q", got)
	}
	p.has(t, "HTTP/2 without TLS")
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, false)
	w := way(t, srv, roots, &court{allow: all, most: 400})
	if got := w.ws(t, "hello\n"); got != "you said hello\n" {
		t.Errorf("%q", got)
	}
	if got := w.ws(t, strings.Repeat("x", 500)+"\n"); got != "" {
		t.Errorf("more than the limit: %q", got)
	}
	w.has(t, "too large")
	// If the server does not upgrade, the gate does not treat the connection as a WebSocket.
	if got := w.raw(t,
		"GET /echo HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /echo "+
			"HTTP/1.1\r\nHost: example.com\r\n\r\n"); strings.Count(got, "HTTP/1.1 200") != 1 ||
		!strings.Contains(got, "Connection: close") {
		t.Errorf("%q", got)
	}
}

// TestWebSocket_RefusalEndsConnection checks that a refused WebSocket closes the connection: the bytes after such a
// request are not parsed as requests.
func TestWebSocket_RefusalEndsConnection(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, b, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		line, _ := b.ReadString('\n')
		io.WriteString(c, "you said "+line)
	}))
	t.Cleanup(srv.Close)
	const ask = "Host: example.com\r\nConnection: Upgrade\r\nUpgrade: "
	for _, first := range []string{"GET /denied", "GET /odd|"} {
		w := way(t, srv, nil, &court{allow: func(q Request) bool { return q.Path != "/denied" }})
		got := w.raw(t, first+" HTTP/1.1\r\n"+ask+"websocket\r\n\r\nGET / HTTP/1.1\r\n"+ask+"h2c\r\n\r\nanything at all\n")
		if strings.Contains(got, "101") || strings.Contains(got, "anything") || strings.Count(got, "HTTP/1.1") != 1 ||
			!strings.Contains(got, "Connection: close") {
			t.Errorf("after %s: %q", first, got)
		}
	}
}

func TestServe_StopsLargeRequests(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		srv, roots := secure(t, h2)
		w := way(t, srv, roots, &court{allow: all, most: 100_000})
		c := w.client(t, h2)
		r, err := c.Post("https://example.com/echo", "", io.MultiReader(bytes.NewReader(make([]byte, 1<<20))))
		if err == nil {
			_, err = io.ReadAll(r.Body)
			if r.Body.Close(); err == nil && r.StatusCode != 413 {
				t.Errorf("%v", r.Status)
			}
		}
		w.has(t, "POST example.com/echo: too large")
	}
}

func TestServe_RefusesUntrustedServers(t *testing.T) {
	t.Parallel()
	srv, _ := secure(t, true)
	w := way(t, srv, x509.NewCertPool(), &court{allow: all})
	if r, err := w.client(t, true).Get("https://example.com/echo"); err == nil {
		r.Body.Close()
		t.Error("a certificate of an unknown authority was accepted")
	}
	if err := <-w.errs; !strings.Contains(err.Error(), "TLS with the server failed") {
		t.Error(err)
	}
	srv, roots := secure(t, true)
	w = way(t, srv, roots, &court{allow: all})
	w.roots = x509.NewCertPool()
	if r, err := w.client(t, true).Get("https://example.com/echo"); err == nil {
		r.Body.Close()
		t.Error("a client that does not trust the authority was answered")
	}
	if err := <-w.errs; !strings.Contains(err.Error(), "trust the gate's CA") {
		t.Error(err)
	}
	c, err := tls.Dial("tcp", w.at, &tls.Config{ServerName: "other.example", InsecureSkipVerify: true})
	if err == nil {
		c.Close()
		t.Error("another server name was accepted")
	}
	if err := <-w.errs; !strings.Contains(err.Error(), "a different server name") {
		t.Error(err)
	}
	c, err = tls.Dial("tcp", w.at,
		&tls.Config{ServerName: "example.com", NextProtos: []string{"imap"}, InsecureSkipVerify: true})
	if err == nil {
		c.Close()
		t.Error("another protocol was accepted")
	}
	if err := <-w.errs; !strings.Contains(err.Error(), "no version of HTTP") {
		t.Error(err)
	}
}

func TestAuthority(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, err := NewAuthority(now)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.PEM())
	first, err := a.certify(name(t, "a.example"), now)
	must(t, err)
	same, err := a.certify(name(t, "a.example"), now.Add(leafFresh-time.Second))
	must(t, err)
	later, err := a.certify(name(t, "a.example"), now.Add(leafFresh))
	must(t, err)
	if first != same || first == later {
		t.Error("certificates are not renewed in time")
	}
	leaf, err := x509.ParseCertificate(later.Certificate[0])
	must(t, err)
	for s, ok := range map[string]bool{"a.example": true, "b.example": false, "x.a.example": false} {
		_, err := leaf.Verify(x509.VerifyOptions{DNSName: s, Roots: roots, CurrentTime: now.Add(leafFresh)})
		if (err == nil) != ok {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now.Add(leafFresh + leafFor)}); !errors.As(err,
		new(x509.CertificateInvalidError)) {
		t.Error(err)
	}
	for i := range 3 * limit.Certificates {
		_, err := a.certify(name(t, fmt.Sprintf("x%d.example", i)), now)
		must(t, err)
	}
	if len(a.leaves) > limit.Certificates {
		t.Errorf("%d certificates are kept", len(a.leaves))
	}
}
