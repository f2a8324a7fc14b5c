package grant

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/policy"
)

// layer parses a section secrets of a level.
func layer(t testing.TB, level policy.Level, section string) policy.Layer {
	t.Helper()
	name := []string{policy.User: "/home/me/.config/coppice/coppice.yaml", policy.Project: "/src/app/coppice.yaml",
		policy.Flags: "/tmp/more.yaml"}[level]
	d, err := policy.Parse(name, []byte("version: 1\nsecrets: "+section+"\n"))
	if err != nil {
		t.Fatal(policy.ProblemsOf(err))
	}
	return policy.Layer{Level: level, Document: d}
}

// TestMerge_Levels checks which level decides about a grant.
func TestMerge_Levels(t *testing.T) {
	t.Parallel()
	const corp = "hosts: [api.corp.example], sites: [{in: bearer}]"
	for name, c := range map[string]struct {
		user, project, flags string
		want                 string // the grants, as JSON
		requested            string
		notes                []string
		problem              string
	}{
		"a user's file gives": {user: "{github: {for: 8h}}", want: `{"github":{"for":"8h","preset":"github"}}`},
		"a project's file requests": {project: "{github: {paths: [/repos/acme/*]}}", requested: "github",
			want: `{"github":{"paths":["/repos/acme/*"],"preset":"github"}}`},
		"flags give": {project: "{github: {uses: 9}}", flags: "{github: {for: 1h}}",
			want: `{"github":{"for":"1h","preset":"github"}}`},
		"flags replace": {user: "{github: {uses: 5}}", flags: "{github: {for: 1h}}",
			want: `{"github":{"for":"1h","preset":"github"}}`},
		"a project's file narrows": {
			user: "{github: {secret: pat, methods: [GET, POST], paths: [/repos/*], for: 8h, uses: 100, fork: reissue}}",
			project: "{github: {hosts: [api.github.com], methods: [GET], paths: [/repos/acme/*], for: 1h, uses: 5, rate: 1/s, " +
				"ask: each, fork: none}}",
			want: `{"github":{"ask":"each","for":"1h","fork":"none","hosts":["api.github.com"],"methods":["GET"],` +
				`"paths":["/repos/acme/*"],"preset":"github","rate":"1/s","secret":"pat","uses":5}}`},
		"and does not narrow what is required": {
			user: "{corp: {mode: require, " + corp + "}}", project: "{corp: {paths: [/x]}}",
			problem: "paths would let other requests have other credentials"},
		"but the uses of it": {
			user: "{corp: {mode: require, " + corp + "}}", project: "{corp: {uses: 5}}",
			want: `{"corp":{"hosts":["api.corp.example"],"mode":"require","sites":[{"in":"bearer"}],"uses":5}}`},
		"and does not widen": {
			user: "{github: {methods: [GET], paths: [/repos/acme/*], for: 1h, uses: 5, rate: 1/s, ask: each}}",
			project: "{github: {methods: [GET, POST], paths: [/repos/*], for: 8h, uses: 50, rate: 2/s, ask: never, " +
				"fork: reissue, env: [X]}}",
			want: `{"github":{"ask":"each","for":"1h","methods":["GET"],"paths":["/repos/acme/*"],"preset":"github",` +
				`"rate":"1/s","uses":5}}`,
			notes: []string{"methods POST has no effect", "for has no effect", "uses has no effect", "rate has no effect",
				"fork has no effect", "env has no effect"}},
		"nor chooses another secret": {user: "{github: {secret: pat}}", project: "{github: {secret: admin}}",
			problem: "the secret is pat, by /home/me"},
		"nor another preset": {user: "{work: {preset: github}}", project: "{work: {preset: gitlab}}",
			problem: "its preset is not that of"},
		"nor other hosts": {user: "{github: {}}", project: "{github: {hosts: [evil.example]}}",
			problem: "none of its hosts is allowed at /home/me"},
		"nor other paths": {user: "{github: {paths: [/a/*]}}", project: "{github: {paths: [/b]}}",
			problem: "none of its paths is allowed"},
		"without TLS": {project: "{c: {" + corp + ", insecure: true, ports: [80]}}", problem: "without TLS"},
		"what a preset refuses": {project: "{github: {except: [/user/keys]}}",
			problem: "cannot allow what a preset refuses"},
		"an unknown preset": {project: "{c: {preset: githup}}", problem: "unknown preset"},
		"no host":           {user: "{c: {sites: [{in: bearer}]}}", problem: "a host is required"},
		"a long list": {project: "{c: {sites: [{in: bearer}], hosts: [" + strings.Repeat("a.example, ", 17) + "]}}",
			problem: "17 entries; the limit is 16"},
		"many requests": {project: "{" + numbered(17, corp) + "}", problem: "at most 16 grants"},
		"a wide host":   {project: "{c: {hosts: [\"*.com\"], sites: [{in: bearer}]}}", problem: "top-level domain"},
	} {
		var layers []policy.Layer
		for level, text := range []string{c.user, c.project, c.flags} {
			if text != "" {
				layers = append(layers, layer(t, policy.Level(level), text))
			}
		}
		s, err := Merge(layers...)
		if c.problem != "" {
			if err == nil || !strings.Contains(policy.ProblemsOf(err).Error(), c.problem) {
				t.Errorf("%s: %v, want %s", name, err, c.problem)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, policy.ProblemsOf(err))
			continue
		}
		got := map[string]policy.Secret{}
		for k, v := range s.Given {
			got[k] = v.Value
		}
		text, _ := json.Marshal(got)
		var requested []string
		for _, r := range s.Requested {
			requested = append(requested, r.Name)
		}
		if string(text) != c.want || strings.Join(requested, " ") != c.requested {
			t.Errorf("%s: %s, requested %s, want %s, %s", name, text, requested, c.want, c.requested)
		}
		if len(s.Notes) != len(c.notes) {
			t.Errorf("%s: notes %v", name, s.Notes)
		}
		for _, want := range c.notes {
			if !strings.Contains(s.Notes.Error(), want) {
				t.Errorf("%s: notes %v, want %s", name, s.Notes, want)
			}
		}
	}
}

func numbered(n int, body string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("g%d: {%s}", i, body))
	}
	return strings.Join(all, ", ")
}

// TestMerge_NeverWidens checks with random files that what a project's file says about a grant of the user's only
// takes requests, uses and time away.
func TestMerge_NeverWidens(t *testing.T) {
	t.Parallel()
	some := func(t *rapid.T, what string, from ...string) []string {
		all := rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, 3, rapid.ID[string]).Draw(t, what)
		if len(all) == 0 {
			return nil
		}
		return all
	}
	item := func(t *rapid.T) Item {
		return Item{
			Hosts:   some(t, "hosts", "a.example", "b.a.example", "*.a.example", "*.example.org", "x.example.org"),
			Methods: some(t, "methods", "GET", "POST", "PUT"),
			Paths:   some(t, "paths", "/*", "/a", "/a/*", "/a/*/c", "/a/b/c", "/a/b/*", "/b"),
			For:     rapid.SampledFrom([]string{"", "1h", "30m", "1h30m", "8h"}).Draw(t, "for"),
			Uses:    rapid.SampledFrom([]int64{0, 1, 5, 50}).Draw(t, "uses"),
			Rate:    rapid.SampledFrom([]string{"", "1/s", "10/m", "500/h", "90/m"}).Draw(t, "rate"),
			Ask:     rapid.SampledFrom([]string{"", "never", "first", "each"}).Draw(t, "ask"),
			Fork:    rapid.SampledFrom([]string{"", "none", "reissue"}).Draw(t, "fork"),
			Mode:    rapid.SampledFrom([]string{"", "replace", "require"}).Draw(t, "mode"),
			Env:     some(t, "env", "A", "B"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		mine, theirs := item(t), item(t)
		if mine.Hosts == nil {
			mine.Hosts = []string{"*.a.example"}
		}
		mine.Sites = []SiteItem{{In: "bearer"}}
		doc := func(level policy.Level, name string, i Item) policy.Layer {
			text, err := policy.SecretOf(i)
			if err != nil {
				t.Fatal(err)
			}
			return policy.Layer{Level: level, Document: policy.Document{Name: name,
				Secrets: map[string]policy.Said[policy.Secret]{"k": {Value: text, At: policy.Origin{Source: name, Line: 2}}}}}
		}
		s, err := Merge(doc(policy.User, "/u", mine), doc(policy.Project, "/p", theirs))
		if err != nil {
			return // nothing is given
		}
		if len(s.Requested) > 0 {
			t.Fatal("a grant of the user's file is requested")
		}
		got, _, err := ItemOf("k", s.Given["k"].Value)
		if err != nil {
			t.Fatal(err)
		}
		before, after := must(mine.Grant("k", time.Unix(0, 0)))(t), must(got.Grant("k", time.Unix(0, 0)))(t)
		later := func(a, b time.Time) bool { return !b.IsZero() && (a.IsZero() || a.After(b)) }
		asks := []AskMode{AskNever, AskFirst, AskEach}
		switch {
		case later(after.Until, before.Until), before.Uses > 0 && (after.Uses == 0 || after.Uses > before.Uses),
			after.Rate.Compare(before.Rate) > 0, before.Fork == ForkNone && after.Fork != ForkNone,
			slices.Index(asks, after.Ask) < slices.Index(asks, before.Ask), after.Mode != before.Mode,
			!slices.Equal(after.Env, before.Env), !reflect.DeepEqual(after.Sites, before.Sites):
			t.Fatalf("%+v is wider than %+v", after, before)
		}
		wide := must(theirs.hostsOf())(t)
		for _, host := range []string{"a.example", "b.a.example", "c.b.a.example", "x.example.org", "example.org"} {
			h := must(policy.ParseHost(host))(t)
			for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
				for _, path := range []string{"/", "/a", "/a/", "/a/b", "/a/b/c", "/a/x/c", "/b", "/b/c"} {
					u := Use{Host: h, Port: 443, TLS: true, HTTP: policy.HTTPRequest{Method: method, Path: path}}
					covers := func(g Grant) bool { return Issued{Grant: g}.covers(u) }
					theirsAllow := (policy.Requests{Methods: theirs.Methods, Paths: theirs.Paths}).Allow(&u.HTTP) &&
						(theirs.Hosts == nil || slices.ContainsFunc(wide, func(p policy.Pattern) bool { return p.Matches(h) }))
					if covers(after) && (!covers(before) || !theirsAllow) {
						t.Fatalf("%s %s%s is allowed by %+v", method, host, path, after)
					}
				}
			}
		}
	})
}

// hostsOf returns the hosts of i as patterns.
func (i Item) hostsOf() (all []policy.Pattern, err error) {
	for _, h := range i.Hosts {
		p, err := policy.ParsePattern(h)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func must[T any](v T, err error) func(interface{ Fatal(...any) }) T {
	return func(t interface{ Fatal(...any) }) T {
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestSection_HasTheFieldsOfItem checks that a policy file has a key for each field of Item and SiteItem, and no other.
func TestSection_HasTheFieldsOfItem(t *testing.T) {
	t.Parallel()
	text := must(policy.Schema())(t)
	var s struct {
		Properties struct {
			Secrets struct {
				Of struct {
					Properties map[string]struct {
						Items struct{ Properties map[string]any }
					}
				} `json:"additionalProperties"`
			}
		}
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	fields := func(v any) (all []string) {
		for f := range reflect.TypeOf(v).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(v).Field(f).Tag.Get("json"), ",")
			all = append(all, name)
		}
		slices.Sort(all)
		return all
	}
	var keys, siteKeys []string
	for k := range s.Properties.Secrets.Of.Properties {
		if k != "optional" {
			keys = append(keys, k)
		}
	}
	for k := range s.Properties.Secrets.Of.Properties["sites"].Items.Properties {
		siteKeys = append(siteKeys, k)
	}
	slices.Sort(keys)
	slices.Sort(siteKeys)
	if want := fields(Item{}); !slices.Equal(keys, want) {
		t.Errorf("keys %s, fields %s", keys, want)
	}
	if want := fields(SiteItem{}); !slices.Equal(siteKeys, want) {
		t.Errorf("keys of a site %s, fields %s", siteKeys, want)
	}
}

// TestRequest_Digest checks that a consent is to one request of one project, and to all of it.
func TestRequest_Digest(t *testing.T) {
	t.Parallel()
	of := func(section string) Request {
		t.Helper()
		s, err := Merge(layer(t, policy.Project, section))
		if err != nil || len(s.Requested) != 1 {
			t.Fatalf("%v, %v", s.Requested, policy.ProblemsOf(err))
		}
		return s.Requested[0]
	}
	one := of("{github: {paths: [/a], for: 1h}}")
	if again := of("{github: {for: 1h, paths: [/a], preset: github}}"); again.Digest() != one.Digest() {
		t.Error("the same request has another digest")
	}
	if one.Root != "/src/app" {
		t.Error(one.Root)
	}
	elsewhere := one
	elsewhere.Root = "/src/other"
	seen := map[string]bool{one.Digest(): true, elsewhere.Digest(): true}
	others := []string{"{github: {paths: [/b], for: 1h}}", "{github: {for: 1h}}", "{github: {paths: [/a], for: 2h}}",
		"{github: {paths: [/a], for: 1h, secret: admin}}", "{github: {paths: [/a], for: 1h, hosts: [evil.example]}}",
		"{github: {paths: [/a], for: 1h, env: [X]}}", "{github: {paths: [/a], for: 1h, uses: 3}}",
		"{github: {paths: [/a], for: 1h, sites: [{in: query, name: x}]}}", "{github: {paths: [/a], for: 1h, fork: reissue}}",
		"{hub: {paths: [/a], for: 1h, preset: github}}", "{github: {paths: [/a], for: 1h, query: {a: b}}}"}
	for _, text := range others {
		seen[of(text).Digest()] = true
	}
	if len(seen) != len(others)+2 {
		t.Errorf("%d digests of %d requests", len(seen), len(others)+2)
	}
}

// TestRequest_TermsAreWords checks that no text of a project's file can look like another term, and that a directory
// whose name is not text has its own digest.
func TestRequest_TermsAreWords(t *testing.T) {
	t.Parallel()
	r := Request{Name: "g", Root: "/a\xff", Grant: given(t, "g", `{"hosts": ["a.example"], "paths": ["/x, /y  uses  1"], "query":
		{"a b": "c  d, e"}, "sites": [{"in": "json", "pointer": "/a  uses  1", "methods": ["POST"], "paths": ["/p  for  1h"]}]}`)}
	for _, term := range r.Terms() {
		if text := strings.Replace(term.Value, " of POST /", "", 1); strings.ContainsAny(text, " ,") && term.What != "for" {
			t.Errorf("%+v", term)
		}
	}
	other := r
	if other.Root = "/a\xfe"; other.Digest() == r.Digest() {
		t.Error("two directories have one digest")
	}
}

// TestRequest_Terms checks that the owner sees the whole request, and hosts that are not of the service it names.
func TestRequest_Terms(t *testing.T) {
	t.Parallel()
	s, err := Merge(layer(t, policy.Project, "{work: {secret: github, hosts: [api.github.com.evil.example], ports: [8443], "+
		"methods: [GET], paths: [/a], query: {q: \"*\"}, sites: [{in: header, name: x-key, methods: [GET]}], env: [K], for: 8h, "+
		"uses: 3, rate: 1/s, ask: first, fork: reissue, mode: require}}"))
	if err != nil {
		t.Fatal(policy.ProblemsOf(err))
	}
	var got []string
	for _, term := range s.Requested[0].Terms() {
		got = append(got, term.What+": "+term.Value)
	}
	want := []string{"grant: work", "secret: github", "hosts: api.github.com.evil.example",
		": WARNING: not hosts of github: api.github.com.evil.example", "ports: 8443", "methods: GET", "paths: /a", "query: q=*",
		"site: header:X-Key of GET", "mode: require", "variables: K", "for: 8h", "uses: 3", "rate: 1/s", "ask: first",
		"forks: reissue"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
