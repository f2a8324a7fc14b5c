package policy

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestSecrets_RoundTrip checks that a grant of a file is in the canonical text, in one form, and in the digest.
func TestSecrets_RoundTrip(t *testing.T) {
	t.Parallel()
	parse := func(text string) Policy {
		t.Helper()
		d, err := Parse("/p/coppice.yaml", []byte(text))
		if err != nil {
			t.Fatal(told(err))
		}
		p, err := Merge(Layer{User, Document{}})
		if err != nil {
			t.Fatal(err)
		}
		p.Secrets = d.Secrets
		return p
	}
	p := parse("version: 1\nsecrets:\n  github:\n    paths: [/repos/a&b/*]\n    for: 8h\n    uses: 20\n    sites: " +
		"[{in: header, name: X-Key}]\n    query: {q: \"<*\"}\n    optional: true\n")
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"secrets":{"github":{"for":"8h","optional":true,"paths":["/repos/a&b/*"],"query":{"q":"<*"},` +
		`"sites":[{"in":"header","name":"X-Key"}],"uses":20}}`
	if !strings.Contains(string(text), want) {
		t.Errorf("canonical text %s, want %s", text, want)
	}
	back, err := ParseCanonical(text)
	if err != nil || back.Secrets["github"].Value != p.Secrets["github"].Value {
		t.Errorf("%+v, %v", back.Secrets, err)
	}
	origins, err := p.Origins()
	if err != nil {
		t.Fatal(err)
	}
	if placed, err := back.Placed(origins); err != nil || placed.Secrets["github"].At != (Origin{"/p/coppice.yaml", 3}) {
		t.Errorf("%+v, %v", placed.Secrets, err)
	}
	again, err := SecretOf(p.Secrets["github"].Value)
	if err != nil || again != p.Secrets["github"].Value {
		t.Errorf("%s, %v", again, err)
	}
	other := parse("version: 1\nsecrets: {github: {uses: 21}}\n")
	if d := Diff(p, other); len(d) != 2 || d[0].Way != Tighter || d[1].Way != Wider {
		t.Errorf("%+v", d)
	}
	a, _ := p.Digest()
	b, _ := other.Digest()
	if a == b {
		t.Error("the digest does not depend on the grants")
	}
	if lines := Explain(p); lines[len(lines)-1].Key != "secrets.github" {
		t.Errorf("%+v", lines)
	}
}

// TestSecrets_RefusesHostileFiles checks that a grant has only known keys, and only text that is what it looks like.
func TestSecrets_RefusesHostileFiles(t *testing.T) {
	t.Parallel()
	many := "{" + strings.Repeat("x", 5) + "0: {}"
	for i := range maxSecrets {
		many += ", a" + strings.Repeat("b", i%60) + string(rune('a'+i/60)) + ": {}"
	}
	for name, c := range map[string]struct{ section, want string }{
		"an unknown key":            {"{github: {path: [/a]}}", "coppice.yaml:2:20: unknown key \"path\""},
		"a value":                   {"{github: {value: abc}}", "unknown key \"value\""},
		"an upper-case name":        {"{GitHub: {}}", "invalid name of a grant \"GitHub\""},
		"a name of other letters":   {"{\"g\\u0456thub\": {}}", "invalid name of a grant"},
		"a host of other letters":   {"{a: {hosts: [\"ap\\u0456.github.com\"]}}", "is not a short text of printable ASCII"},
		"control bytes":             {"{a: {hosts: [\"a.example\\u001b[2K\"]}}", "is not a short text of printable ASCII"},
		"a turned direction":        {"{a: {paths: [\"/a\\u202ecba\"]}}", "is not a short text of printable ASCII"},
		"a newline":                 {"{a: {secret: \"a\\nb\"}}", "is not a short text of printable ASCII"},
		"a long text":               {"{a: {env: [" + strings.Repeat("A", 257) + "]}}", "is not a short text of printable ASCII"},
		"an empty list":             {"{a: {hosts: []}}", "an empty list"},
		"an alias":                  {"{a: &x {}, b: *x}", "an anchor"},
		"a duplicate":               {"{a: {}, a: {}}", "duplicate key"},
		"a negative number of uses": {"{a: {uses: -1}}", "invalid number"},
		"a time without a unit":     {"{a: {for: \"8\"}}", "invalid time"},
		"a word":                    {"{a: {ask: often}}", "unknown value \"often\""},
		"a port":                    {"{a: {ports: [65536]}}", "invalid number"},
		"a site without a place":    {"{a: {sites: [{name: x}]}}", "in is missing"},
		"many grants":               {many + "}", "the limit is 100"},
	} {
		_, err := Parse("coppice.yaml", []byte("version: 1\nsecrets: "+c.section+"\n"))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(ProblemsOf(err).Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, ProblemsOf(err), c.want)
		}
	}
}

// TestSecrets_DifferAtOneLevel checks that two files of a level cannot say different things about a grant.
func TestSecrets_DifferAtOneLevel(t *testing.T) {
	t.Parallel()
	doc := func(name, text string) Layer {
		d, err := Parse(name, []byte("version: 1\nsecrets: "+text+"\n"))
		if err != nil {
			t.Fatal(told(err))
		}
		return Layer{Flags, d}
	}
	a, b := doc("/a.yaml", "{github: {uses: 1}}"), doc("/b.yaml", "{github: {uses: 2}}")
	if _, err := Merge(a, a); err != nil {
		t.Error(err)
	}
	if _, err := Merge(a, b); err == nil || !strings.Contains(ProblemsOf(err).Error(), "grant github is different at") {
		t.Error(err)
	}
}

// TestWithin compares Pattern.Within and PathWithin with what the patterns match.
func TestWithin(t *testing.T) {
	t.Parallel()
	hosts := []string{"a.b", "x.a.b", "y.x.a.b", "*.a.b", "*.x.a.b", "*.b.c", "aa.b"}
	for _, p := range hosts {
		for _, o := range hosts {
			inner, outer := must1(ParsePattern(p))(t), must1(ParsePattern(o))(t)
			for _, h := range append(hosts, "z.a.b", "z.x.a.b") {
				if name, err := ParseHost(h); err == nil && inner.Within(outer) && inner.Matches(name) && !outer.Matches(name) {
					t.Errorf("%s is not within %s: %s", p, o, h)
				}
			}
		}
		if q := must1(ParsePattern(p))(t); !q.Within(q) {
			t.Errorf("%s is not within itself", p)
		}
	}
	paths := []string{"/*", "/", "/a", "/a/", "/a/*", "/a/b", "/a/*/c", "/a/b/c", "/a/b/*", "/*/b", "/a/*/*"}
	for _, p := range paths {
		for _, o := range paths {
			for _, at := range []string{"/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c", "/a/x/c", "/b/b", "/a/b/c/d", "/a//c"} {
				in := Requests{Paths: []string{p}}.Allow(&HTTPRequest{Path: at})
				if PathWithin(p, o) && in && !(Requests{Paths: []string{o}}).Allow(&HTTPRequest{Path: at}) {
					t.Errorf("%s is not within %s: %s", p, o, at)
				}
			}
		}
		if !PathWithin(p, p) || !PathWithin(p, "/*") {
			t.Errorf("%s is not within itself, or not within /*", p)
		}
	}
	if !PathWithin("/a/b/*", "/a/*") || PathWithin("/a/*", "/a/b") || !PathWithin("/a/b/c", "/a/*/c") {
		t.Error("PathWithin is too narrow or too wide")
	}
}

func must1[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
