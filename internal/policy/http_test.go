package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParseRequests_AcceptsAWildcardForAnyPart(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"/", "/*", "/a/*", "/repos/*/*/keys", "/*/a", "/*/*", "/a/*/"} {
		if _, err := ParseRequests([]string{"POST"}, []string{s}); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "*", "a", "/a*", "/**", "/a/**/b", "/a*/b", "/*a/b", "/../*/b", "/a%20b", "//*/b"} {
		if _, err := ParseRequests(nil, []string{s}); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, want a refusal with a hint", s, err)
		}
	}
	if _, err := ParseRequests([]string{"post"}, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("a method in lower case: %v", err)
	}
}

func TestRequests_MatchPartByPart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, path   string
		allowed, denied bool
	}{
		{"/repos/*/*/keys", "/repos/acme/web/keys", true, true},
		{"/repos/*/*/keys", "/repos/acme/web/keys/", false, true},
		{"/repos/*/*/keys", "/Repos/acme/web/KEYS", false, true},
		{"/repos/*/*/keys", "/repos/acme/keys", false, false},
		{"/repos/*/*/keys", "/repos/acme/web/x/keys", false, false},
		{"/repos/*/*/keys", "/repos//web/keys", false, true}, // ambiguous
		{"/repos/*/*/keys", "/repos/acme%2Fweb/keys", false, true},
		{"/a/*/b/*", "/a/x/b/c/d", true, true},
		{"/a/*/b/*", "/a/x/b", false, true},
		{"/a/*/b/*", "/a/x/c/b", false, false},
	} {
		r, err := ParseRequests(nil, []string{c.pattern})
		if err != nil {
			t.Fatal(err)
		}
		q := &HTTPRequest{Method: "GET", Path: c.path}
		if a, d := r.Allow(q), r.Forbid(q); a != c.allowed || d != c.denied {
			t.Errorf("%s, %s: allowed %t, denied %t", c.pattern, c.path, a, d)
		}
	}
}

// TestRequests_MatchRulesAsPrefixes compares the matcher with a simpler one, which knows a * only at the end.
func TestRequests_MatchRulesAsPrefixes(t *testing.T) {
	t.Parallel()
	paths := rapid.StringMatching(`(/[aAb]{0,2}){1,4}`)
	rapid.Check(t, func(t *rapid.T) {
		pattern := paths.Draw(t, "pattern") + rapid.SampledFrom([]string{"", "/*"}).Draw(t, "end")
		path := paths.Draw(t, "path")
		if _, err := parsePath(pattern); err != nil {
			t.Skip("not a pattern of a rule")
		}
		if _, ok := cleanPath(path); !ok {
			t.Skip("an ambiguous path")
		}
		r, q := Requests{Paths: []string{pattern}}, &HTTPRequest{Method: "GET", Path: path}
		below, all := strings.CutSuffix(pattern, "*")
		if want := pattern == path || all && strings.HasPrefix(path, below); r.Allow(q) != want {
			t.Fatalf("%s allows %s: %t", pattern, path, !want)
		}
		folded := strings.TrimSuffix(strings.ToLower(path), "/") + "/"
		below = strings.TrimSuffix(strings.ToLower(below), "/") + "/"
		if want := folded == below || all && strings.HasPrefix(folded, below); r.Forbid(q) != want {
			t.Fatalf("%s forbids %s: %t", pattern, path, !want)
		}
	})
}
