package ports

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// world is a Proxy on a real server, with sandboxes whose ports are real servers.
type world struct {
	t     *testing.T
	proxy *Proxy
	front *httptest.Server
	now   time.Time

	proved atomic.Int64 // calls of Options.Proved
	asked  atomic.Int64 // calls of Identify

	mu   sync.Mutex
	back map[string]string // addresses to dial, by "id:port"; guarded by mu
	fail error             // of each dial; guarded by mu
	all  []string          // dialled "id:port"; guarded by mu
}

// ids are the sandboxes of every world, by name.
var ids = map[string]string{"box": "0123456789ab", "other": "ba9876543210"}

func newWorld(t *testing.T, change ...func(*Options)) *world {
	w := &world{t: t, now: time.Now(), back: map[string]string{}}
	opt := Options{Engine: w, Home: t.TempDir(), Now: func() time.Time { return w.now },
		Proved: func(context.Context) { w.proved.Add(1) }}
	for _, f := range change {
		f(&opt)
	}
	w.proxy = New(opt)
	t.Cleanup(w.proxy.Close)
	w.front = httptest.NewServer(
		w.proxy.Before(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the API") })))
	t.Cleanup(w.front.Close)
	w.proxy.ServedAt(Listener{Addr: netip.MustParseAddrPort(w.front.Listener.Addr().String())})
	return w
}

func (w *world) Identify(_ context.Context, name string) (string, string, error) {
	w.asked.Add(1)
	for n, id := range ids {
		if name == n || name == id {
			return id, n, nil
		}
	}
	return "", "", fault.New(fault.NotFound, "no sandbox %q", name)
}

func (w *world) DialPort(ctx context.Context, name string, port int) (net.Conn, error) {
	w.mu.Lock()
	at := fmt.Sprintf("%s:%d", name, port)
	w.all = append(w.all, at)
	addr, err := w.back[at], w.fail
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if addr == "" {
		return nil, fault.New(fault.NotFound, "nothing listens on port %d of sandbox <box>", port).
			WithHint("start a server: coppice run --in box --detach -- CMD")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
}

// serve serves port 3000 of box with a handler.
func (w *world) serve(h http.HandlerFunc) {
	back := httptest.NewServer(h)
	w.t.Cleanup(back.Close)
	w.at(back.Listener.Addr().String())
}

func (w *world) at(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.back["0123456789ab:3000"] = addr
}

// raw serves port 3000 of box with a server that answers every connection with text.
func (w *world) raw(text string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, text)
				if text == "" {
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
	}()
	w.at(ln.Addr().String())
}

const host = "3000--box-0123456789ab.localhost"

// request returns a request to a host of the proxy; each of headers is "Name: value".
func (w *world) request(method, host, path string, headers ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequest(method, w.front.URL+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	r.Host = host
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// answer is a response without its body.
type answer struct {
	StatusCode int
	Header     http.Header
	Trailer    http.Header
	cookies    []*http.Cookie
}

func (a answer) Cookies() []*http.Cookie { return a.cookies }

// do sends a request and returns the answer and its body.
func (w *world) do(r *http.Request) (answer, string) {
	w.t.Helper()
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, res.Trailer, res.Cookies()}, string(b)
}

func (w *world) get(path string, headers ...string) (answer, string) {
	w.t.Helper()
	return w.do(w.request("GET", host, path, headers...))
}

func TestHostileHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Allow = func(*http.Request) func(string) error { return func(string) error { return nil } }
	})
	w.serve(func(w http.ResponseWriter, _ *http.Request) { t.Error("the request reached the sandbox") })
	for _, host := range []string{"x.localhost", "3000--.localhost", "3000--box-0123456789ab.localhost:99999",
		"a.3000--box-0123456789ab.localhost",
		"03000--box-0123456789ab.localhost", "0--box-0123456789ab.localhost", "3000--box.LOCALHOST:x"} {
		if res, body := w.do(w.request("GET", host, "/")); res.StatusCode != http.StatusBadRequest ||
			strings.Contains(body, "the API") {
			t.Errorf("%s: %d %q", host, res.StatusCode, body)
		}
	}
	// The guard of the listener handles these hosts.
	for _, host := range []string{"localhost", "127.0.0.1", "3000--box-0123456789ab.localhost.example.com",
		"3000--box-0123456789ab.localhost."} {
		if _, body := w.do(w.request("GET", host, "/")); body != "the API" {
			t.Errorf("%s: %q", host, body)
		}
	}
	if res, _ := w.do(
		w.request("GET", host, "/",
			"X: "+strings.Repeat("x", maxRequestHeader))); res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a large header: %d", res.StatusCode)
	}
}

// TestProxy_ServesBelowDomain checks links and cookies below a configured domain, whose subdomains are one site for a
// browser.
func TestProxy_ServesBelowDomain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Domain = Domain{Name: "p.example.com"} })
	w.serve(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in ", r.Host) })
	made, err := w.proxy.Preview(t.Context(), "box", 3000, 0)
	if err != nil {
		t.Fatal(err)
	}
	link, err := url.Parse(made.URL)
	const below = "3000--box-0123456789ab.p.example.com"
	if err != nil || link.Hostname() != below || link.Port() == "" {
		t.Fatal(made.URL, err)
	}
	res, _ := w.do(w.request("GET", link.Host, "/?"+link.RawQuery))
	set := res.Header["Set-Cookie"]
	if res.StatusCode != http.StatusTemporaryRedirect || len(set) != 1 || strings.Contains(strings.ToLower(set[0]), "domain") ||
		res.Header.Get("Location") != "http://"+link.Host+"/" {
		t.Fatalf("%d %q", res.StatusCode, res.Header)
	}
	value, _, _ := strings.Cut(set[0], ";")
	cookie := "Cookie: " + value
	for name, c := range map[string]struct {
		host    string
		headers []string
		code    int
	}{
		"a cookie":        {below, []string{cookie}, 200},
		"no cookie":       {below, nil, 403},
		"below localhost": {"3000--box-0123456789ab.localhost", []string{cookie}, 200},
		"another port":    {"3001--box-0123456789ab.p.example.com", []string{cookie}, 403},
		"another sandbox": {"3000--other-ba9876543210.p.example.com", []string{cookie}, 403},
		"a page of the port": {
			below, []string{cookie, "Origin: http://" + below, "Sec-Fetch-Site: same-origin"}, 200},
		"a page of another sandbox": {
			below, []string{cookie, "Origin: http://3000--other-ba9876543210.p.example.com", "Sec-Fetch-Site: same-site"}, 403},
		"an image in it": {
			below, []string{cookie, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
		"a frame in it": {
			below, []string{cookie, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403},
		"a link in it": {
			below, []string{cookie, "Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200},
	} {
		if res, body := w.do(w.request("GET", c.host, "/", c.headers...)); res.StatusCode != c.code {
			t.Errorf("%s: %d %q", name, res.StatusCode, body)
		}
	}
	if res, body := w.do(w.request("GET", "x.p.example.com", "/", cookie)); res.StatusCode != 400 ||
		!strings.Contains(body, "3000--box-0123456789ab.p.example.com") {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	if _, body := w.do(w.request("GET", "p.example.com", "/", cookie)); body != "the API" {
		t.Errorf("the domain itself: %q", body)
	}
}

func TestProxy_CleansRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var got *http.Request
	w.serve(func(_ http.ResponseWriter, r *http.Request) { got = r })
	cookie := w.cookie()
	_, number, _ := net.SplitHostPort(w.front.Listener.Addr().String())
	at := host + ":" + number
	w.do(w.request("GET", at, "/p?coppice_preview=old&a=%zz&b=1;c", cookie+"; app=1", "Cookie: x=y; coppice_preview=z",
		"Authorization: Bearer cpc_secret", "Referer: http://"+at+"/?coppice_preview=t",
		"X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil", "X-Forwarded-Proto: https", "Forwarded: for=1.2.3.4",
		"Sec-WebSocket-Protocol: cpc_secret", "X-Own: kept", "Connection: X-Hop", "X-Hop: gone"))
	if got == nil {
		t.Fatal("no request arrived")
	}
	if got.Host != at || got.RequestURI != "/p?a=%zz&b=1;c" {
		t.Errorf("%s %s", got.Host, got.RequestURI)
	}
	for name, want := range map[string]string{"Cookie": "app=1; x=y", "Authorization": "", "Referer": "",
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Host": at, "X-Forwarded-Proto": "http",
		"Forwarded": "", "Sec-Websocket-Protocol": "", "X-Own": "kept", "X-Hop": ""} {
		if v := strings.Join(got.Header.Values(name), "|"); v != want {
			t.Errorf("%s: %q", name, v)
		}
	}
	w.do(w.request("GET", at, "/", cookie, "Authorization: Bearer of-the-app", "Referer: http://"+at+"/x"))
	if got.Header.Get("Authorization") != "Bearer of-the-app" || got.Header.Get("Referer") == "" ||
		got.Header.Get("Cookie") != "" {
		t.Errorf("%v", got.Header)
	}
}

func TestProxy_CleansResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Set-Cookie"] = []string{"a=1", "b=2; Domain=localhost", "coppice_preview=x", "=coppice_preview=x", "c=3; Path=/"}
		for _, name := range []string{"X-Accel-Redirect", "x-accel-expires", "X-Accel-New"} { // of the proxy in front
			h.Set(name, "/internal")
			h.Set(http.TrailerPrefix+name, "/internal")
		}
		h.Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		for name := range farHeaders {
			h.Set(name, "?0")
			h.Set(http.TrailerPrefix+name, "?0")
		}
		h.Set("Trailer", "Nel, X-Announced")
		h.Set(http.TrailerPrefix+"Set-Cookie", "d=1; Domain=localhost")
		h.Set(http.TrailerPrefix+"X-Late", "kept")
		h.Set("X-Announced", "kept")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "tea")
	})
	res, _ := w.get("/", w.cookie())
	if got := res.Header.Values("Set-Cookie"); res.StatusCode != http.StatusTeapot ||
		!slices.Equal(got, []string{"a=1", "c=3; Path=/"}) {
		t.Errorf("%d %q", res.StatusCode, got)
	}
	for name := range farHeaders {
		if v := res.Header.Values(name); v != nil && name != "Origin-Agent-Cluster" || http.CanonicalHeaderKey(name) != name {
			t.Errorf("%s: %q", name, v)
		}
	}
	for name := range res.Header {
		if strings.HasPrefix(name, proxyHeaders) {
			t.Errorf("%s: %q", name, res.Header[name])
		}
	}
	if v := res.Header.Values("Origin-Agent-Cluster"); !slices.Equal(v, []string{"?1"}) {
		t.Errorf("Origin-Agent-Cluster: %q", v)
	}
	if res.Trailer.Get("X-Late") != "kept" || res.Trailer.Get("X-Announced") != "kept" || len(res.Trailer) != 2 {
		t.Errorf("trailers: %q", res.Trailer)
	}
	// Nothing precedes the final response.
	conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\nConnection: close\r\n\r\n", host, w.cookie())
	if all, _ := io.ReadAll(conn); !strings.HasPrefix(string(all), "HTTP/1.1 418 ") {
		t.Errorf("%s", all)
	}
}

// TestProxy_RefusesServiceWorkers checks that a browser cannot register one: it would stay across a rewind.
func TestProxy_RefusesServiceWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(func(w http.ResponseWriter, _ *http.Request) { t.Error("the request reached the sandbox") })
	cookie, link := w.cookie(), w.link("box", 3000, 0)
	for _, header := range []string{"Service-Worker: script", "Service-Worker: x", "Sec-Fetch-Dest: serviceworker"} {
		for _, path := range []string{"/sw.js", "/sw.js?" + link} {
			res, body := w.get(path, header, cookie)
			if res.StatusCode != http.StatusForbidden || !strings.Contains(body, "service workers") ||
				!strings.Contains(body, "coppice net forward NAME 3000 --forward") || len(res.Cookies()) != 0 {
				t.Errorf("%s %s: %d %s", header, path, res.StatusCode, body)
			}
		}
	}
}

func TestProxy_RejectsInvalidResponses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.HeaderTimeout = 300 * time.Millisecond })
	cookie := w.cookie()
	for name, c := range map[string]struct {
		answer string
		code   int
		says   string
	}{
		"garbage": {"\x00\x01<script>alert(1)</script>\r\n\r\n", 502, "did not send a valid HTTP response"},
		"ends":    {"HTTP/1.1 ", 502, "did not send a valid HTTP response"},
		"never":   {"", 504, "did not respond"},
		"an endless head": {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxResponseHeader) + "\r\n\r\n", 502,
			"did not send a valid HTTP response"},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 502,
			"did not send a valid HTTP response"},
		"split": {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 502,
			"did not send a valid HTTP response"},
	} {
		w.raw(c.answer)
		res, body := w.get("/", cookie, "Accept: text/html")
		if res.StatusCode != c.code || !strings.Contains(body, c.says) || strings.Contains(body, "<script") ||
			!strings.Contains(res.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %q", name, res.StatusCode, body)
		}
		w.proxy.tr.CloseIdleConnections()
	}
	w.at("")
	res, body := w.get("/", cookie, "Accept: text/html")
	if res.StatusCode != 502 || !strings.Contains(body, "Nothing listens on port 3000 of sandbox &lt;box&gt;") ||
		!strings.Contains(body, "coppice run --in box") {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	if res, body = w.get("/", cookie); res.StatusCode != 502 ||
		!strings.HasPrefix(body, "coppice: Nothing listens on port 3000") ||
		!strings.Contains(body, "\nhint: start a server: coppice run --in box") {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	w.fail = fault.New(fault.Timeout, "who listens takes no connection")
	if res, body = w.get("/", cookie); res.StatusCode != 504 {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	w.fail = errors.New("secret \x1b[31m")
	if res, body = w.get("/", cookie); res.StatusCode != 502 || strings.Contains(body, "secret") {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended := make(chan struct{}, 9)
	w.serve(func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { conn.Close(); ended <- struct{}{} }()
		fmt.Fprintf(conn,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSet-Cookie: a=b; "+
				"Domain=localhost\r\nX-Query: %s\r\n\r\n", r.URL.RawQuery)
		for {
			line, err := buf.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "+%s", line)
		}
	})
	for name, c := range map[string]struct{ path, cookie string }{
		"by cookie": {"/", w.cookie()}, "by link": {"/?" + w.link("box", 3000, 0), "X: y"},
	} {
		conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn,
			"GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\nOrigin: http://%s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
			c.path, host, c.cookie, host)
		br := bufio.NewReader(conn)
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 101 || len(res.Cookies()) != 0 || res.Header.Get("X-Query") != "" {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		defer res.Body.Close()
		for _, line := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(conn, line); err != nil {
				t.Fatal(err)
			}
			if got, err := br.ReadString('\n'); got != "+"+line {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		conn.Close()
		<-ended
	}
}

func TestProxy_StreamsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next := make(chan struct{})
	w.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	res, err := http.DefaultTransport.RoundTrip(w.request("GET", host, "/", w.cookie()))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	br := bufio.NewReader(res.Body)
	for i := range 3 {
		if line, err := br.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = br.ReadString('\n')
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(br); err != nil || len(rest) != 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestProxy_SharesNoConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Allow = func(*http.Request) func(string) error { return func(string) error { return nil } }
	})
	for name, id := range ids {
		back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) }))
		t.Cleanup(back.Close)
		w.back[id+":80"] = back.Listener.Addr().String()
	}
	for range 3 {
		for name := range ids {
			if _, body := w.do(w.request("GET", none.Host(80, name, ids[name]), "/")); body != name {
				t.Errorf("the server of %s answered for %s", body, name)
			}
		}
	}
	if len(w.all) != 2 {
		t.Errorf("connections are not reused: %q", w.all)
	}
}
