package grant

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// given returns the grant of an item in JSON.
func given(t testing.TB, name, text string) Grant {
	t.Helper()
	g, err := parsed(name, text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return g
}

func parsed(name, text string) (Grant, error) {
	var i Item
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&i); err != nil {
		return Grant{}, err
	}
	return i.Grant(name, now)
}

func TestItem_GivesGrant(t *testing.T) {
	t.Parallel()
	g := given(t, "github", `{"secret": "github-pat", "preset": "github", "paths": ["/repos/acme/*", "/user"],
		"methods": ["GET", "POST"], "env": ["GH_TOKEN"], "for": "8h", "uses": 2000, "rate": "10/s", "fork": "reissue",
		"ask": "first", "mode": "require", "except": ["/graphql"]}`)
	if g.Name != "github" || g.Secret != "github-pat" || g.Kind != GitHub || len(g.Hosts) != 4 || len(g.Sites) != 4 ||
		!slices.Equal(g.Ports, []uint16{443}) || !g.Until.Equal(now.Add(8*time.Hour)) || g.Uses != 2000 ||
		g.Rate != (policy.Rate{Count: 10, Per: time.Second}) || g.Fork != ForkReissue || g.Ask != AskFirst ||
		g.Mode != ModeRequire || !slices.Equal(g.Env, []string{"GH_TOKEN"}) || len(g.Deny) != 6 {
		t.Errorf("%+v", g)
	}
	g = given(t, "internal", `{"hosts": ["api.corp.example"], "sites": [{"in": "header", "name": "x-api-key"}]}`)
	if g.Secret != "internal" || g.Sites[0].Name != "X-Api-Key" || g.Mode != ModeReplace || g.Fork != ForkNone ||
		g.Ask != AskNever || !g.Until.IsZero() {
		t.Errorf("%+v", g)
	}
	g = given(t, "ghe", `{"preset": "github", "hosts": ["github.corp.example"]}`)
	if len(g.Hosts) != 1 || g.Hosts[0].String() != "github.corp.example" || len(g.Deny) == 0 {
		t.Errorf("the hosts of a preset are not replaced, or what it denies is: %+v", g)
	}
}

func TestItem_SaysWhatIsInvalid(t *testing.T) {
	t.Parallel()
	short := strings.NewReplacer("$h", `"hosts": ["a.example"]`, "$s", `"sites": [{"in": "bearer"}]`)
	for text, want := range map[string]string{
		`{}`:                                                              "host",
		`{$h}`:                                                            "site",
		`{"hosts": ["*"], $s}`:                                            "every host",
		`{"hosts": ["*.com"], $s}`:                                        "top-level",
		`{"hosts": ["*.github.io"], $s}`:                                  "anyone",
		`{"hosts": ["10.0.0.1"], $s}`:                                     "address",
		`{$h, "ports": [0], $s}`:                                          "ports",
		`{$h, "insecure": true, $s}`:                                      "ports",
		`{$h, "methods": ["get"], $s}`:                                    "upper case",
		`{$h, "methods": ["CONNECT"], $s}`:                                "CONNECT",
		`{$h, "methods": ["TRACE"], $s}`:                                  "TRACE",
		`{$h, "paths": ["/a**"], $s}`:                                     "path",
		`{$h, "for": "-1h", $s}`:                                          "duration",
		`{$h, "for": "8", $s}`:                                            "duration",
		`{$h, "uses": -1, $s}`:                                            "uses",
		`{$h, "rate": "10", $s}`:                                          "rate",
		`{$h, "kind": "githb", $s}`:                                       "did you mean github?",
		`{$h, "mode": "replce", $s}`:                                      "did you mean replace?",
		`{$h, "ask": "frist", $s}`:                                        "did you mean first?",
		`{$h, "fork": "reisue", $s}`:                                      "did you mean reissue?",
		`{$h, "env": ["1X"], $s}`:                                         "variable",
		`{$h, "env": ["X"], "mode": "add", $s}`:                           "placeholder",
		`{$h, "except": ["/x"], $s}`:                                      "preset",
		`{$h, "secret": "Git Hub", $s}`:                                   "name",
		`{"preset": "githb"}`:                                             "did you mean github?",
		`{"preset": "github", "except": ["/grapql"]}`:                     "/graphql",
		`{"preset": "bearer"}`:                                            "host",
		`{"preset": "github", "mode": "add"}`:                             "one site",
		`{"preset": "aws", "mode": "add", "env": []}`:                     "mode add",
		`{$h, "mode": "require", "sites": [{"in": "ssh"}]}`:               "require",
		`{$h, "mode": "add", "sites": [{"in": "path"}]}`:                  "mode add",
		`{$h, "sites": [{"in": "header", "name": "X", "pointer": "/a"}]}`: "another site",
		`{$h, "sites": [{"in": "bearer", "services": ["s3"]}]}`:           "another site",
		`{$h, "sites": [{"in": "bearer", "paths": ["x"]}]}`:               "path",
		`{$h, "sites": [{"in": "heder"}]}`:                                "did you mean header?",
		`{$h, "sites": [{"in": "bearer"}, {"in": "bearer"}]}`:             "duplicate",
		`{$h, "sites": [{"in": "json", "pointer": "/a"}]}`:                "methods and paths",
		`{$h, "sites": [{"in": "form", "name": "a", "methods": ["PUT"], "paths": ["/*"]}]}`: "all bodies",
	} {
		_, err := parsed("g", short.Replace(text))
		if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" ||
			!strings.Contains(err.Error()+" "+fault.HintOf(err), want) || !strings.HasPrefix(err.Error(), "grant g: ") {
			t.Errorf("%s: %v (%s), want %q", text, err, fault.HintOf(err), want)
		}
	}
	for _, name := range []string{"", "-a", "A", "a b", "a/b", strings.Repeat("a", 65)} {
		if _, err := parsed(name, `{"preset": "github"}`); !fault.Is(err, fault.Invalid) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if _, err := parsed("g", `{"preset": "github", "host": ["x"]}`); err == nil {
		t.Error("an unknown field is accepted")
	}
}

func TestFlags_GiveItem(t *testing.T) {
	t.Parallel()
	i, err := Flags{Hosts: []string{"a.example"}, Methods: []string{"POST"}, Paths: []string{"/login"}, Basic: true,
		Headers: []string{"X-Key", "Authorization:token"}, Queries: []string{"key"}, Bodies: []string{"/auth/token"},
		TTL: "1h", Uses: 5}.Item("secret")
	if err != nil {
		t.Fatal(err)
	}
	g, err := i.Grant("g", now)
	if err != nil || g.Secret != "secret" || g.Uses != 5 ||
		g.sites() != "basic:password, header:X-Key, header:Authorization:token, query:key, json:/auth/token" {
		t.Errorf("%+v, %v", g, err)
	}
	for _, f := range []Flags{{Headers: []string{"Content-Length"}}, {Headers: []string{""}}, {Queries: []string{"a b"}},
		{Bodies: []string{"token"}}} {
		if _, err := f.Item("s"); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", f, err)
		}
	}
	i, err = Flags{Hosts: []string{"a.example"}, Bodies: []string{"/token"}}.Item("s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = i.Grant("g", now); !fault.Is(err, fault.Invalid) {
		t.Errorf("a site in all bodies: %v", err)
	}
}

func TestParseSite_RoundTrips(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"bearer": "bearer", "basic": "basic:password", "basic:user": "basic:user", "git": "git:password",
		"header:x-api-key": "header:X-Api-Key", "header:Authorization:token": "header:Authorization:token",
		"query:key": "query:key", "cookie:sid": "cookie:sid", "form:password": "form:password", "path": "path",
		"json:/a~1b/0": "json:/a~1b/0", "sigv4": "sigv4", "sigv4:eu-west-1/s3": "sigv4:eu-west-1/s3", "sigv4:*/s3,sqs": "sigv4:*/s3,sqs", "sigv4:*/*": "sigv4",
		"sigv4:a,b/*": "sigv4:a,b/*", "ssh": "ssh", "ssh:deploy": "ssh:deploy", "metadata:aws": "metadata:aws",
		"postgres:app:main": "postgres:app:main",
	} {
		s, err := ParseSite(in)
		if err != nil || s.String() != want {
			t.Errorf("%s: %s, %v", in, s, err)
		}
	}
	for _, in := range []string{"", "x", "Bearer", "header", "header:", "header:a b", "header:Host", "header:te",
		"header:transfer-encoding", "header:Cookie", "header:a\r\n", "header:X:a b", "basic:x", "query", "query:a&b",
		"cookie:a=b", "cookie:a;b", "json", "json:a", "json:/~2", "json:/~", "path:x", "sigv4:x", "sigv4:/", "sigv4:a/b/c",
		"sigv4:a,/b", "sigv4:a/b c", "ssh:a b", "ssh:-x", "metadata",
		"metadata:x", "postgres", "postgres:u", "form:", "bearer:X", "bearer:Authorization:Basic"} {
		if s, err := ParseSite(in); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %s, %v", in, s, err)
		}
	}
}

func FuzzParseSite(f *testing.F) {
	for _, s := range []string{"bearer", "header:X-Api-Key:token", "basic:user", "json:/a~1b", "postgres:u:d",
		"query:%s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSite(text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if again, err := ParseSite(s.String()); err != nil || again.String() != s.String() {
			t.Fatalf("%q: %s, then %s, %v", text, s, again, err)
		}
	})
}

func FuzzItem(f *testing.F) {
	f.Add("github", `{"preset": "github", "paths": ["/repos/*/*/keys"], "for": "8h", "uses": 2}`)
	f.Add("api", `{"hosts": ["*.a.example"], "sites": [{"in": "json", "pointer": "/a", "methods": ["POST"],
		"paths": ["/x"]}]}`)
	f.Fuzz(func(t *testing.T, name, text string) {
		var i Item
		if json.Unmarshal([]byte(text), &i) != nil {
			return
		}
		g, err := i.Grant(name, now)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%s: %v", text, err)
			}
			return
		}
		if err := g.Check(); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	})
}
