package inject

import (
	"bufio"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
)

const (
	placeholder = "ghp_PLACEHOLDERplaceholder0000000000AAAA"
	value       = "ghp_VALUEvalueVALUEvalue/+=&%:VALUEvalue"
)

func coded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// site parses the short form of a site.
func site(t *testing.T, text string) grant.Site {
	t.Helper()
	s, err := grant.ParseSite(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestInto has a server read the requests, after package grant has decided about them.
func TestInto(t *testing.T) {
	t.Parallel()
	type request struct {
		method, target string
		headers        []string
	}
	get := func(target string, headers ...string) request { return request{"GET", target, headers} }
	for _, x := range []struct {
		site string
		mode grant.Mode
		in   request
		want func(*http.Request) string
		text string // "" is the value
	}{
		{"bearer", "", get("/", "Authorization: Bearer P"), header1("Authorization"), "Bearer V"},
		{"bearer", "", get("/", "authorization: bearer P"), header1("Authorization"), "bearer V"},
		{"header:X-Api-Key", "", get("/", "x-api-key: P"), header1("X-Api-Key"), ""},
		{"header:Authorization:token", "", get("/", "Authorization: token P"), header1("Authorization"), "token V"},
		{"header:X-Api-Key", grant.ModeAdd, get("/", "X-Api-Key: mine"), header1("X-Api-Key"), ""},
		{"bearer", grant.ModeAdd, get("/"), header1("Authorization"), "Bearer V"},
		{"basic", "", get("/", "Authorization: Basic "+coded("me:"+placeholder)), password, "me:V"},
		{"basic", grant.ModeAdd, get("/"), password, "coppice:V"},
		{"basic", grant.ModeAdd, get("/", "Authorization: Basic "+coded("me:mine")), password, "me:V"},
		{"basic", grant.ModeAdd, get("/", "Authorization: Bearer mine"), password, "coppice:V"},
		{"git", "", get("/a/b.git/info/refs?service=git-upload-pack", "Authorization: Basic "+coded("me:"+placeholder)),
			password, "me:V"},
		{"query:key", "", get("/x?a=1&key=P&b=2"), func(r *http.Request) string { return r.URL.Query().Get("key") }, ""},
		{"query:key", "", get("/x?a=1&k%65y=P&b=2"), func(r *http.Request) string {
			return r.URL.Query().Get("a") + r.URL.Query().Get("key") + r.URL.Query().Get("b")
		}, "1V2"},
		{"query:key", grant.ModeAdd, get("/x?key=mine&a=1"), func(r *http.Request) string {
			return strings.Join(r.URL.Query()["key"], " ")
		}, ""},
		{"path", "", get("/bot/P/send%20it"), func(r *http.Request) string { return r.URL.Path }, "/bot/V/send it"},
		{"path", "", get("/bot/P/send"), func(r *http.Request) string {
			return strings.Split(r.URL.EscapedPath(), "/")[3]
		}, "send"},
	} {
		r := parse(t, x.in.method, x.in.target, x.in.headers)
		s := site(t, x.site)
		g := grant.Grant{Name: "g", Secret: "s", Hosts: hosts(t), Ports: []uint16{443}, Sites: []grant.Site{s}, Mode: x.mode}
		issued := grant.Issued{Grant: g}
		if x.mode != grant.ModeAdd {
			issued.Placeholder = placeholder
		}
		set, err := grant.NewSet("box", []grant.Issued{issued})
		if err != nil {
			t.Fatal(err)
		}
		use := grant.Use{Host: host(t), Port: 443, TLS: true, Header: r.Header}
		use.HTTP = policy.HTTPRequest{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery}
		ruling := set.Decide(use, nil, time.Now())
		if ruling.Deny != nil || len(ruling.Put) != 1 {
			t.Errorf("%s %v: %+v", x.site, x.in, ruling)
			continue
		}
		if err := Into(r, ruling.Put[0], []byte(value)); err != nil {
			t.Errorf("%s %v: %v", x.site, x.in, err)
			continue
		}
		want := strings.ReplaceAll(x.text, "V", value)
		if x.text == "" {
			want = value
		}
		if got := x.want(arrived(t, r)); got != want {
			t.Errorf("%s %s %v: %q, want %q", x.site, x.mode, x.in, got, want)
		}
	}
}

func header1(name string) func(*http.Request) string {
	return func(r *http.Request) string { return strings.Join(r.Header[name], " and ") }
}

func password(r *http.Request) string {
	u, p, _ := r.BasicAuth()
	return u + ":" + p
}

func TestInto_Cookie(t *testing.T) {
	t.Parallel()
	const cookieValue = "ghp_VALUEvalueVALUEvalueVALUEvalueVALUE0"
	for mode, text := range map[grant.Mode]string{grant.ModeReplace: placeholder, grant.ModeAdd: "mine"} {
		r := parse(t, "GET", "/", []string{"Cookie: a=1; session=" + text + "; b=2"})
		p := grant.Put{Site: site(t, "cookie:session"), Mode: mode, Placeholder: placeholder}
		if err := Into(r, p, []byte(cookieValue)); err != nil {
			t.Fatal(err)
		}
		got := arrived(t, r)
		c, err := got.Cookie("session")
		if err != nil || c.Value != cookieValue || len(got.Cookies()) != 3 {
			t.Errorf("%s: %v, %v", mode, got.Cookies(), err)
		}
	}
}

// TestInto_Fails checks requests that are not as they were decided about, and values that fit no site.
func TestInto_Fails(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		site, value string
		headers     []string
	}{
		{"bearer", value, nil},
		{"bearer", value, []string{"Authorization: Bearer P", "Authorization: Bearer P"}},
		{"bearer", value, []string{"Authorization: Bearer Px"}},
		{"bearer", "has a\nnewline", []string{"Authorization: Bearer P"}},
		{"bearer", "has a\x00", []string{"Authorization: Bearer P"}},
		{"bearer", "", []string{"Authorization: Bearer P"}},
		{"basic", value, []string{"Authorization: Bearer P"}},
		{"basic", value, []string{"Authorization: Basic " + coded("me:other")}},
		{"basic:user", value, []string{"Authorization: Basic " + coded(placeholder+":x")}},
		{"cookie:session", "has;semicolon", []string{"Cookie: session=P"}},
		{"cookie:session", "simple", []string{"Cookie: session=P; session=P"}},
		{"query:key", "simple", nil},
		{"path", "simple", nil},
	} {
		r := parse(t, "GET", "/", x.headers)
		err := Into(r, grant.Put{Site: site(t, x.site), Placeholder: placeholder}, []byte(x.value))
		if err == nil || x.value != "" && strings.Contains(err.Error(), x.value) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// parse returns a request as a server reads it. P in it is the placeholder.
func parse(t *testing.T, method, target string, headers []string) *http.Request {
	t.Helper()
	text := method + " " + target + " HTTP/1.1\r\nHost: api.example\r\n" + strings.Join(append(headers, ""), "\r\n") + "\r\n"
	for _, p := range []string{" P", "=P", "/P"} {
		text = strings.ReplaceAll(text, p, p[:1]+placeholder)
	}
	text = strings.Replace(text, placeholder+"OST", "POST", 1)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		t.Fatal(err, text)
	}
	return r
}

// arrived sends r to a server, and returns what arrives there.
func arrived(t *testing.T, r *http.Request) (got *http.Request) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer s.Close()
	r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", strings.TrimPrefix(s.URL, "http://")
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return got
}

func hosts(t *testing.T) []policy.Pattern {
	t.Helper()
	p, err := policy.ParsePattern("api.example")
	if err != nil {
		t.Fatal(err)
	}
	return []policy.Pattern{p}
}

func host(t *testing.T) policy.Host {
	t.Helper()
	h, err := policy.ParseHost("api.example")
	if err != nil {
		t.Fatal(err)
	}
	return h
}
