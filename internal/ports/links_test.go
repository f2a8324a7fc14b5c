package ports

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// link creates a link, and returns its query.
func (w *world) link(name string, port int, ttl time.Duration) string {
	w.t.Helper()
	p, err := w.proxy.Preview(w.t.Context(), name, port, ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	u, err := url.Parse(p.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	return u.RawQuery
}

// cookie exchanges a link for a cookie, and returns a Cookie header line.
func (w *world) cookie() string {
	w.t.Helper()
	res, body := w.get("/?" + w.link("box", 3000, 0))
	if res.StatusCode != http.StatusTemporaryRedirect || len(res.Cookies()) != 1 {
		w.t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
	}
	return "Cookie: " + param + "=" + res.Cookies()[0].Value
}

func TestPreviewLink_BecomesCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Method, r.RequestURI) })
	p, err := w.proxy.Preview(t.Context(), "box", 3000, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(p.URL)
	_, number, _ := net.SplitHostPort(w.front.Listener.Addr().String())
	if err != nil || u.Scheme != "http" || u.Host != host+":"+number || u.Path != "/" ||
		!p.Expires.Equal(w.now.Add(10*time.Minute).Truncate(time.Second)) {
		t.Errorf("%+v", p)
	}
	for method, path := range map[string]string{"GET": "/a%2fb//c?x=1&y=%zz", "POST": "//example.com/x?",
		"HEAD": "/\\example.com"} {
		path, query, _ := strings.Cut(path, "?")
		res, _ := w.do(w.request(method, u.Host, path+"?"+u.RawQuery+"&"+query))
		to, err := url.Parse(res.Header.Get("Location"))
		if res.StatusCode != 307 || err != nil || to.Host != u.Host || to.Scheme != "http" ||
			strings.Contains(to.String(), param) || to.RawQuery != query {
			t.Errorf("%s: %d %v", path, res.StatusCode, to)
		}
		if want := strings.ReplaceAll(path, "\\", "%5C"); to.EscapedPath() != want {
			t.Errorf("%s redirects to %s", path, to.EscapedPath())
		}
		c := res.Cookies()
		if len(c) != 1 || c[0].Name != param || !c[0].HttpOnly || c[0].SameSite != http.SameSiteLaxMode || c[0].Path != "/" ||
			c[0].Domain != "" || c[0].Secure ||
			c[0].MaxAge < 590 || c[0].MaxAge > 600 || !c[0].Expires.Equal(p.Expires) ||
			strings.Contains(u.RawQuery, c[0].Value) {
			t.Errorf("%v", res.Header["Set-Cookie"])
		}
		if res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%v", res.Header)
		}
		res, body := w.do(w.request("GET", u.Host, "/x?y", "Cookie: "+param+"="+c[0].Value))
		if res.StatusCode != 200 || body != "GET /x?y" {
			t.Errorf("%d %s", res.StatusCode, body)
		}
	}
}

func TestPreview_RefusesUnauthorized(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(func(w http.ResponseWriter, _ *http.Request) { t.Error("the request reached the sandbox") })
	link := w.link("box", 3000, time.Minute)
	token := strings.TrimPrefix(link, param+"=")
	foreign, port := w.link("other", 3000, time.Minute), w.link("box", 3001, time.Minute)
	cookie := w.cookie()
	stranger := New(Options{Engine: w, Home: t.TempDir()})
	stranger.ServedAt(*w.proxy.served.Load())
	forged, err := stranger.Preview(t.Context(), "box", 3000, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, forgedQuery, _ := strings.Cut(forged.URL, "?")
	w.proved.Store(0)
	for name, r := range map[string]*http.Request{
		"nothing":                      w.request("GET", host, "/"),
		"a forged link":                w.request("GET", host, "/?"+forgedQuery),
		"a link of another sandbox":    w.request("GET", host, "/?"+foreign),
		"a link of another port":       w.request("GET", host, "/?"+port),
		"a link at another port":       w.request("GET", "3001--box-0123456789ab.localhost", "/?"+link),
		"a link at another sandbox":    w.request("GET", "3000--other-ba9876543210.localhost", "/?"+link),
		"a link at the name alone":     w.request("GET", "3000--box.localhost", "/?"+link),
		"a cookie at the ID alone":     w.request("GET", "3000--0123456789ab.localhost", "/", cookie),
		"a link at an unknown sandbox": w.request("GET", "3000--none.localhost", "/?"+link),
		"a link as a cookie":           w.request("GET", host, "/", "Cookie: "+param+"="+token),
		"a cookie as a link":           w.request("GET", host, "/?"+strings.TrimPrefix(cookie, "Cookie: ")),
		"a cookie at another port":     w.request("GET", "3001--box-0123456789ab.localhost", "/", cookie),
		"a cookie at another sandbox":  w.request("GET", "3000--other-ba9876543210.localhost", "/", cookie),
		"an unknown bearer token":      w.request("GET", host, "/", "Authorization: Bearer cpc_x"),
		"a link in a header":           w.request("GET", host, "/", "Referer: http://"+host+"/?"+link),
		"WebSocket of another page": w.request("GET", host, "/", cookie, "Connection: Upgrade", "Upgrade: websocket",
			"Origin: http://3000--other-ba9876543210.localhost"),
		"a WebSocket from no page": w.request("GET", host, "/?"+link, "Connection: Upgrade", "Upgrade: websocket",
			"Origin: null"),
	} {
		res, body := w.do(r)
		if res.StatusCode != http.StatusForbidden || !strings.Contains(body, "coppice net forward NAME PORT") ||
			len(res.Cookies()) != 0 {
			t.Errorf("%s: %d %q", name, res.StatusCode, body)
		}
	}
	// A request without valid credentials causes no lookup.
	w.asked.Store(0)
	for _, headers := range [][]string{nil, {"Cookie: " + param + "=1.0123456789ab.3000.99999999999.AAAA"},
		{"Authorization: Bearer x"}} {
		w.get("/?"+forgedQuery, headers...)
	}
	if n := w.asked.Load(); n != 0 {
		t.Errorf("%d sandboxes were looked up without credentials", n)
	}
	w.now = w.now.Add(2 * time.Hour)
	for name, r := range map[string]*http.Request{"link": w.request("GET", host, "/?"+link),
		"cookie": w.request("GET", host, "/", cookie)} {
		if res, body := w.do(r); res.StatusCode != http.StatusForbidden || !strings.Contains(body, "has expired") {
			t.Errorf("an expired %s: %d %q", name, res.StatusCode, body)
		}
	}
	if n := w.proved.Load(); n != 0 {
		t.Errorf("%d requests counted as proved", n)
	}
	if w.mu.Lock(); len(w.all) != 0 {
		t.Errorf("%q was dialled", w.all)
	}
	w.mu.Unlock()
}

// TestPreviewLink_ExpiryEndsStreams covers streams and WebSockets that were opened with the link.
func TestPreviewLink_ExpiryEndsStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended := make(chan struct{}, 2)
	w.serve(func(out http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		if r.Header.Get("Upgrade") == "" {
			out.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(out).Flush()
			<-r.Context().Done()
			return
		}
		conn, buf, err := http.NewResponseController(out).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, buf)
	})
	link := w.link("box", 3000, time.Minute)
	res, _ := w.get("/?" + link)
	w.now = w.now.Truncate(time.Second).Add(time.Minute - 300*time.Millisecond)
	for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: x\r\n"} {
		conn, err := net.Dial("tcp", w.front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nCookie: %s=%s\r\n%s\r\n", host, param,
			res.Cookies()[0].Value, upgrade)
		b, _ := io.ReadAll(conn) // ends
		if !strings.HasPrefix(string(b), "HTTP/1.1 200") && !strings.HasPrefix(string(b), "HTTP/1.1 101") {
			t.Errorf("%s", b)
		}
		<-ended
	}
}

func TestPreviewCookie_IsSecureUnderTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.proxy.ServedAt(Listener{Addr: netip.MustParseAddrPort(w.front.Listener.Addr().String()), Secure: true})
	res, _ := w.get("/?" + w.link("box", 3000, 0))
	if c := res.Cookies(); len(c) != 1 || !c[0].Secure || !c[0].HttpOnly || c[0].SameSite != http.SameSiteLaxMode {
		t.Errorf("%v", res.Header["Set-Cookie"])
	}
}

func TestPreview_AcceptsListenerToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) {
		o.Allow = func(r *http.Request) func(string) error {
			if r.Header.Get("Authorization") != "Bearer cpc_good" {
				return nil
			}
			return func(id string) error {
				if id != "0123456789ab" {
					return fault.New(fault.Denied, "no")
				}
				return nil
			}
		}
	})
	w.serve(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "in") })
	const good = "Authorization: Bearer cpc_good"
	for name, c := range map[string]struct {
		headers []string
		code    int
	}{
		"a token":                 {[]string{good}, 200},
		"a bad token":             {[]string{"Authorization: Bearer cpc_bad"}, 403},
		"from a page of the port": {[]string{good, "Origin: http://" + host, "Sec-Fetch-Site: same-origin"}, 200},
		"from another site": {
			[]string{good, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, 403},
		"from another origin": {[]string{good, "Origin: http://3000--other-ba9876543210.localhost"}, 403},
		"navigation from another site": {
			[]string{good, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200},
		"frame in another site": {
			[]string{good, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403},
	} {
		if res, body := w.get("/", c.headers...); res.StatusCode != c.code {
			t.Errorf("%s: %d %q", name, res.StatusCode, body)
		}
	}
	if res, _ := w.do(w.request("GET", "3000--other-ba9876543210.localhost", "/", good)); res.StatusCode != 403 {
		t.Errorf("another sandbox: %d", res.StatusCode)
	}
	// A sandbox has one host for a port, which no other sandbox ever has: browsers keep state for a host.
	for _, host := range []string{"3000--box.localhost", "3000--0123456789ab.localhost",
		"3000--box-ba9876543210.localhost",
		"3000--other-0123456789ab.localhost", "3000--a-box-0123456789ab.localhost"} {
		if res, _ := w.do(w.request("GET", host, "/", good)); res.StatusCode != 403 {
			t.Errorf("%s: %d", host, res.StatusCode)
		}
	}
}

func TestPreviewLink_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		box  string
		port int
		ttl  time.Duration
		kind fault.Kind
	}{
		"unknown sandbox":     {"none", 80, 0, fault.NotFound},
		"port 0":              {"box", 0, 0, fault.Invalid},
		"a large port":        {"box", 65536, 0, fault.Invalid},
		"a long lifetime":     {"box", 80, 8 * 24 * time.Hour, fault.Invalid},
		"a negative lifetime": {"box", 80, -1, fault.Invalid},
	} {
		if p, err := w.proxy.Preview(t.Context(), c.box, c.port, c.ttl); !fault.Is(err, c.kind) || fault.HintOf(err) == "" &&
			c.kind == fault.Invalid {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	closed := New(Options{Engine: w, Home: t.TempDir()})
	if p, err := closed.Preview(t.Context(), "box", 80, 0); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(fault.HintOf(err), "--forward") || !strings.Contains(fault.HintOf(err), "serve --http") {
		t.Errorf("%+v, %v", p, err)
	}
}
