package ports

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzTakeParam checks that no token is left in a query, and that the rest is unchanged.
func FuzzTakeParam(f *testing.F) {
	for _, s := range []string{"", "a=b", "coppice_preview=x", "a&coppice_preview=x&b=c;d", "coppice%5fpreview=x",
		"coppice_preview", "%zz=1&coppice_preview=%zz", "&&=&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		tokens, rest := takeParam(query)
		more, again := takeParam(rest)
		if len(more) != 0 || again != rest || len(rest) > len(query) || len(tokens) > strings.Count(query, "=") {
			t.Errorf("%q: %q, %q; then %q, %q", query, tokens, rest, more, again)
		}
	})
}

// FuzzProxyHeaders checks that none of Coppice's cookies and tokens is forwarded to the sandbox, whatever else is in
// the headers, and that no cookie for a wider domain is returned.
func FuzzProxyHeaders(f *testing.F) {
	for _, s := range [][3]string{
		{"a=b; coppice_preview=x", "Bearer cpc_x", "a=b"},
		{"coppice_preview=x; coppice_preview=y", "Bearer its-own", "a=b; Domain=localhost"},
		{" coppice_preview =x", "cpc_cpc_", "coppice_preview=x"}, {";;=;", "Basic a.cpc_b", "a;domain"},
		{"a=\"coppice_preview=x\"", "x,cpc_y", "a=b;\tdOmAiN\t=x"}, {"a=b\x00;coppice_preview=1", "", "\x7f"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, cookie, authorization, set string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Cookie", cookie)
		r.Header.Set("Authorization", authorization)
		withoutOurs(r.Header)
		if len(r.CookiesNamed(param)) > 0 {
			t.Errorf("%q is forwarded as %q", cookie, r.Header["Cookie"])
		}
		for _, word := range strings.FieldsFunc(r.Header.Get("Authorization"),
			func(c rune) bool { return c == ' ' || c == ',' }) {
			if strings.HasPrefix(word, tokenPrefix) {
				t.Errorf("%q is forwarded", authorization)
			}
		}
		res := &http.Response{Header: http.Header{"Set-Cookie": {set}}}
		if err := clean(res); err != nil {
			t.Error(err)
		}
		for _, c := range res.Cookies() {
			if c.Name == param || c.Domain != "" {
				t.Errorf("%q is returned", set)
			}
		}
	})
}
