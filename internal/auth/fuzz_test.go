package auth

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// FuzzHeaders checks that no headers admit a client without a token, and that the source of a request is an
// address or a network.
func FuzzHeaders(f *testing.F) {
	for _, s := range [][4]string{
		{"localhost", "Bearer x", "", "1.2.3.4"},
		{"127.0.0.1:80", "bearer cpc_00000000_" + strings.Repeat("A", 43), "http://127.0.0.1:80", "a, b,::1"},
		{"[::1]:7", "Bearer", "null", "fe80::1%eth0"}, {"80--a.localhost", "Bearer cpc_", "", ","},
		{"localhost.", "\x00", "http://localhost.", ""},
		{"[::ffff:127.0.0.1]", "Basic cpc_", "https://[::ffff:127.0.0.1]", "[::1]:9"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	var reached string
	next := func(who string) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reached = who
			if From(r.Context()).Scope != 0 {
				reached = "a principal"
			}
		})
	}
	g := NewGuard(next("the API"),
		Options{Tokens: &Tokens{Store: &shelf{}, Find: find}, BehindProxy: true, Hosts: []string{"box.example"},
			PreviewDomain: "p.example",
			Preview:       next("a preview"),
			Limits:        Limits{Failed: Rate{1e9, 1 << 30}}})
	f.Fuzz(func(t *testing.T, host, authorization, origin, forwarded string) {
		r := httptest.NewRequest("POST", "/v1/x", nil)
		r.Host = host
		for name, v := range map[string]string{"Authorization": authorization, "Origin": origin,
			"X-Forwarded-For": forwarded} {
			if v != "" {
				r.Header.Set(name, v)
			}
		}
		from := g.remote(r)
		if _, err := netip.ParseAddr(from); err != nil {
			if p, err := netip.ParsePrefix(from); err != nil || p.Bits() != 64 {
				t.Errorf("the source is %q", from)
			}
		}
		reached = ""
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		site := SiteOf(host, netip.Addr{}, g.opt.Hosts, g.opt.PreviewDomain)
		secret, shown := bearer(r)
		if reached != "" && (reached != "a preview" || site != Preview) || shown && strings.ContainsAny(secret, "\r\n") &&
			w.Code == 200 {
			t.Errorf("%q %q %q: reached %s, %d", host, authorization, origin, reached, w.Code)
		}
		if reached == "" && w.Code < 400 {
			t.Errorf("refused with %d", w.Code)
		}
	})
}
