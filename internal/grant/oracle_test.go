package grant

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/policy"
)

// plainGrant is a grant in the terms of the reference below.
type plainGrant struct {
	host, path, header, placeholder string
	methods                         []string
	revoked, add                    bool
	uses                            int64
}

// matches is a slow reference of what a grant covers.
func (g plainGrant) matches(host, method, path string) bool {
	suffix, below := strings.CutPrefix(g.host, "*")
	if below && !strings.HasSuffix(host, suffix) || !below && host != g.host {
		return false
	}
	start, all := strings.CutSuffix(g.path, "*")
	return (g.methods == nil || slices.Contains(g.methods, method)) && (path == g.path || all && strings.HasPrefix(path, start))
}

// TestDecide_AgreesWithReference compares Decide with a reference for grants of one header each: every placeholder must
// be the whole value of its header, in a request that its grant covers. A grant that adds gives way to a longer host,
// and to a longer path.
func TestDecide_AgreesWithReference(t *testing.T) {
	t.Parallel()
	words := func(s ...string) *rapid.Generator[string] { return rapid.SampledFrom(s) }
	rapid.Check(t, func(t *rapid.T) {
		var all []plainGrant
		var issued []Issued
		for i, placeholder := range []string{p1, p2, p3}[:rapid.IntRange(1, 3).Draw(t, "grants")] {
			g := plainGrant{host: words("a.b.example", "*.b.example", "*.a.b.example").Draw(t, "host"),
				path: words("/*", "/a/*", "/a/b").Draw(t, "path"), header: words("X-A", "X-B").Draw(t, "header"),
				revoked: rapid.Bool().Draw(t, "revoked"), add: rapid.Bool().Draw(t, "add"),
				uses: rapid.Int64Range(1, 2).Draw(t, "uses"), placeholder: placeholder}
			if rapid.Bool().Draw(t, "limited") {
				g.methods = []string{"GET"}
			}
			item := Item{Hosts: []string{g.host}, Paths: []string{g.path}, Methods: g.methods, Uses: g.uses,
				Sites: []SiteItem{{In: "header", Name: g.header}}}
			if g.add {
				item.Mode, g.placeholder = "add", ""
			}
			grant, err := item.Grant(fmt.Sprint("g", i), now)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, g)
			issued = append(issued, Issued{Grant: grant, Placeholder: g.placeholder, Revoked: g.revoked})
		}
		s, err := NewSet("box", issued)
		if err != nil {
			t.Skip("two grants match equally")
		}
		host := words("a.b.example", "c.a.b.example", "evil.test").Draw(t, "to")
		u := Use{Port: 443, TLS: true, Header: http.Header{}, HTTP: policy.HTTPRequest{
			Method: words("GET", "POST").Draw(t, "method"), Path: words("/", "/a/b", "/a/c", "/A/b").Draw(t, "at")}}
		if u.Host, err = policy.ParseHost(host); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"X-A", "X-B"} {
			if v := words("", "x", p1, p2, p3, p1+"x").Draw(t, name); v != "" {
				u.Header.Set(name, v)
			}
		}
		spent := Spent{"g0": {Used: rapid.Int64Range(0, 2).Draw(t, "used")}}
		want := reference(all, u, host, spent["g0"].Used)
		r := s.Decide(u, spent, now)
		got := "refused"
		if r.Deny == nil {
			var put []string
			for _, p := range r.Put {
				put = append(put, p.Grant)
			}
			got = strings.Join(put, " ")
		}
		if got != want {
			t.Fatalf("%+v, %s %+v: %q (%+v), want %q", all, host, u, got, r.Deny, want)
		}
	})
}

// reference returns the names of the grants that u gets, or "refused".
func reference(all []plainGrant, u Use, host string, usedByFirst int64) string {
	claims := map[string][]int{}
	for i, g := range all {
		covers := !g.revoked && g.matches(host, u.HTTP.Method, u.HTTP.Path)
		spent := i == 0 && usedByFirst >= g.uses
		there := 0
		for name, v := range u.Header {
			if g.placeholder != "" && strings.Contains(v[0], g.placeholder) {
				there++
				if !covers || spent || name != g.header || v[0] != g.placeholder {
					return "refused"
				}
			}
		}
		switch {
		case there > 1, g.add && covers && spent:
			return "refused"
		case there == 1, g.add && covers:
			claims[g.header] = append(claims[g.header], i)
		}
	}
	// A name is longer than any pattern.
	length := func(g plainGrant) int {
		n := len(g.host)*1000 + len(g.path)
		if g.host[0] != '*' {
			n += 1_000_000
		}
		return n
	}
	var put []string
	for i, g := range all {
		if !slices.Contains(claims[g.header], i) {
			continue
		}
		wins := true
		for _, j := range claims[g.header] {
			if i != j && (g.add || all[j].add) {
				if length(all[j]) == length(g) {
					return "refused"
				}
				wins = wins && length(g) > length(all[j])
			}
		}
		if wins {
			put = append(put, fmt.Sprint("g", i))
		}
	}
	return strings.Join(put, " ")
}
