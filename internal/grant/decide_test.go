package grant

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// use returns a request to a URL.
func use(t testing.TB, method, to string) Use {
	t.Helper()
	at, err := url.Parse(to)
	if err != nil { // the path may be invalid
		_, rest, _ := strings.Cut(to, "://")
		host, path, _ := strings.Cut(rest, "/")
		at = &url.URL{Scheme: "https", Host: host, RawPath: "/" + path}
	}
	host, err := policy.ParseHost(at.Hostname())
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(strings.SplitN(to, "?", 2)[0], "://")
	_, path, _ := strings.Cut(rest, "/")
	u := Use{Host: host, Port: 443, TLS: at.Scheme == "https", Header: http.Header{},
		HTTP: policy.HTTPRequest{Method: method, Path: "/" + path, Query: at.RawQuery}}
	if at.Scheme == "http" {
		u.Port = 80
	}
	return u
}

// with returns u with headers, given as "Name: value".
func (u Use) with(headers ...string) Use {
	u.Header = u.Header.Clone()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		u.Header[name] = append(u.Header[name], value)
	}
	return u
}

func set(t testing.TB, all ...Issued) Set {
	t.Helper()
	s, err := NewSet("box", all)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func basicOf(user, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

const (
	p1 = "uM4XD2kUW5zN8yqJ0pR7tLs3"
	p2 = "Zk9QwErTyUiOpAsDfGhJkL12"
	p3 = "mNbVcXzLkJhGfDsApOiUyT34"
)

// api is a grant with every site in a head.
const api = `{"hosts": ["api.example", "*.sub.example"], "sites": [{"in": "bearer"}, {"in": "basic"}, {"in": "path"},
	{"in": "header", "name": "X-Key"}, {"in": "header", "name": "Authorization", "part": "token"},
	{"in": "query", "name": "key"}, {"in": "cookie", "name": "sid"}]}`

func TestDecide_PutsSecretAtItsSite(t *testing.T) {
	t.Parallel()
	s := set(t, Issued{Grant: given(t, "api", api), Placeholder: p1})
	get := use(t, "GET", "https://api.example/v1")
	for at, u := range map[string]Use{
		"bearer":                     get.with("Authorization: Bearer " + p1),
		"bearer ":                    get.with("Authorization: bearer " + p1),
		"bearer  ":                   get.with("authorization: BEARER " + p1),
		"basic:password":             get.with(basicOf("someone", p1)),
		"header:X-Key":               get.with("X-Key: "+p1, "Accept: a", "Accept: b"),
		"header:X-Key ":              use(t, "GET", "https://a.b.sub.example/").with("X-Key: " + p1),
		"header:Authorization:token": get.with("Authorization: token " + p1),
		"query:key":                  use(t, "GET", "https://api.example/v1?a=b&key="+p1+"&a=c"),
		"cookie:sid":                 get.with("Cookie: a=b; sid=" + p1 + "; a=c"),
		"path":                       use(t, "GET", "https://api.example/bot/"+p1+"/send"),
	} {
		r := s.Decide(u, nil, now)
		if r.Deny != nil || len(r.Put) != 1 || r.Put[0].Site.String() != strings.TrimSpace(at) ||
			r.Put[0].Placeholder != p1 || r.Put[0].Secret != "api" || r.Put[0].Left != -1 {
			t.Errorf("%s: %+v, %+v", at, r.Put, r.Deny)
		}
	}
	if r := s.Decide(get.with("Authorization: Bearer other"), nil, now); r.Deny != nil || r.Put != nil {
		t.Errorf("a request without a placeholder: %+v", r)
	}
}

func TestDecide_RefusesPlaceholderElsewhere(t *testing.T) {
	t.Parallel()
	s := set(t, Issued{Grant: given(t, "api", api), Placeholder: p1})
	get := use(t, "GET", "https://api.example/v1")
	half := base64.StdEncoding.EncodeToString([]byte("u:" + p1))
	if !strings.HasSuffix(half, "=") {
		t.Fatal("the example has no padding")
	}
	for about, u := range map[string]Use{
		"another host":              use(t, "GET", "https://evil.example/").with("Authorization: Bearer " + p1),
		"a host that ends alike":    use(t, "GET", "https://notapi.example/").with("X-Key: " + p1),
		"the parent of the hosts":   use(t, "GET", "https://sub.example/").with("X-Key: " + p1),
		"a Host header only":        use(t, "GET", "https://evil.example/").with("Host: api.example", "X-Key: "+p1),
		"without TLS":               use(t, "GET", "http://api.example/").with("X-Key: " + p1),
		"in another header":         get.with("X-Other: " + p1),
		"in a forwarding header":    get.with("Proxy-Authorization: Bearer " + p1),
		"in a longer value":         get.with("X-Key: x" + p1),
		"with a suffix":             get.with("Authorization: Bearer " + p1 + ", x"),
		"with two spaces":           get.with("Authorization: Bearer  " + p1),
		"with a tab":                get.with("Authorization: Bearer\t" + p1),
		"mixed case of the scheme":  get.with("Authorization: bEaReR " + p1),
		"another scheme":            get.with("Authorization: Digest " + p1),
		"no scheme":                 get.with("Authorization: " + p1),
		"two headers":               get.with("X-Key: "+p1, "X-Key: other"),
		"two spellings of a header": get.with("X-Key: "+p1, "x-key: other"),
		"twice in headers":          get.with("X-Key: "+p1, "Authorization: Bearer "+p1),
		"twice in a value":          get.with("X-Key: " + p1 + p1),
		"in a header and the path":  use(t, "GET", "https://api.example/"+p1).with("X-Key: " + p1),
		"user of Basic":             get.with(basicOf(p1, "x")),
		"user and password":         get.with(basicOf(p1, p1)),
		"password with more":        get.with(basicOf("u", p1+":x")),
		"mixed case of Basic":       get.with("Authorization: bAsIc " + half),
		"Basic in another encoding": get.with("Authorization: Basic " + strings.TrimRight(half, "=") + "=x"),
		"Basic with a tab":          get.with("Authorization: Basic\t" + half),
		"Basic with other letters":  get.with("Authorization: Basic " + half[:7] + "!*" + half[7:]),
		"Basic with a stray letter": get.with("Authorization: Basic " + strings.TrimRight(half, "=") + "=AAA"),
		"Basic without padding":     get.with("Authorization: Basic " + strings.TrimRight(half, "=")),
		"two keys in a query":       use(t, "GET", "https://api.example/?key="+p1+"&key=x"),
		"two keys, one escaped":     use(t, "GET", "https://api.example/?key="+p1+"&%6bey=x"),
		"a semicolon in a query":    use(t, "GET", "https://api.example/?key="+p1+";key=x"),
		"another key":               use(t, "GET", "https://api.example/?q="+p1),
		"in a key":                  use(t, "GET", "https://api.example/?"+p1+"=1"),
		"an escaped key":            use(t, "GET", "https://api.example/?%75M4"+p1[3:]+"=1"),
		"another key, escaped":      use(t, "GET", "https://api.example/?q=%75"+p1[1:]),
		"an invalid escape":         use(t, "GET", "https://api.example/?key="+p1+"&a=%zz&q=%zz"+p1),
		"a key with invalid escape": use(t, "GET", "https://api.example/?%zz=%75"+p1[1:]),
		"another method in a query": use(t, "GET", "https://api.example/?%5fmethod=DELETE").with("X-Key: " + p1),
		"in a part of the path":     use(t, "GET", "https://api.example/bot"+p1),
		"in an escaped path":        use(t, "GET", "https://api.example/%75"+p1[1:]),
		"two cookies":               get.with("Cookie: sid=x; sid=" + p1),
		"two headers of cookies":    get.with("Cookie: sid="+p1, "Cookie: sid=x"),
		"another cookie":            get.with("Cookie: sid2=" + p1),
		"a quoted cookie":           get.with(`Cookie: sid="` + p1 + `"`),
		"a tunnel":                  use(t, "CONNECT", "https://api.example/").with("X-Key: " + p1),
		"a trace":                   use(t, "TRACE", "https://api.example/").with("X-Key: " + p1),
		"a trace in lower case":     use(t, "trace", "https://api.example/").with("X-Key: " + p1),
		"no host":                   {Port: 443, TLS: true, Header: http.Header{"X-Key": {p1}}},
		"another port":              {Host: get.Host, Port: 8443, TLS: true, Header: http.Header{"X-Key": {p1}}},
	} {
		r := s.Decide(u, nil, now)
		if r.Deny == nil || r.Put != nil || r.Deny.Grant != "api" || r.Deny.Reason == "" || r.Deny.Hint == "" ||
			strings.Contains(r.Deny.Reason+r.Deny.Hint, p1) {
			t.Errorf("%s: %+v, %+v", about, r.Put, r.Deny)
		}
	}
	r := s.Decide(use(t, "GET", "https://evil.example/").with("X-Key: "+p1), nil, now)
	if r.Deny.Hint != "coppice grant box api --host evil.example" {
		t.Errorf("the hint is %q", r.Deny.Hint)
	}
}

func TestDecide_Limits(t *testing.T) {
	t.Parallel()
	g := given(t, "api", `{"hosts": ["api.example"], "sites": [{"in": "bearer"}], "methods": ["GET"],
		"paths": ["/v1/*", "/x"], "query": {"a": "*"}, "for": "1h", "uses": 3, "rate": "5/m"}`)
	s := set(t, Issued{Grant: g, Placeholder: p1})
	auth := "Authorization: Bearer " + p1
	get := use(t, "GET", "https://api.example/v1/a?a=1").with(auth)
	for about, c := range map[string]struct {
		use   Use
		spent Count
		at    time.Time
		left  int64 // -1: refused
	}{
		"the first":         {get, Count{}, now, 2},
		"the last":          {get, Count{Used: 2}, now, 0},
		"one too many":      {get, Count{Used: 3}, now, -1},
		"far too many":      {get, Count{Used: 1 << 40}, now, -1},
		"within the rate":   {get, Count{Recent: 4}, now, 2},
		"beyond the rate":   {get, Count{Recent: 5}, now, -1},
		"just before":       {get, Count{}, now.Add(time.Hour - 1), 2},
		"at its end":        {get, Count{}, now.Add(time.Hour), -1},
		"another method":    {use(t, "POST", "https://api.example/v1/a").with(auth), Count{}, now, -1},
		"another path":      {use(t, "GET", "https://api.example/v2/a").with(auth), Count{}, now, -1},
		"climbs":            {use(t, "GET", "https://api.example/v1/../v2").with(auth), Count{}, now, -1},
		"an escaped slash":  {use(t, "GET", "https://api.example/v1/a%2fb").with(auth), Count{}, now, -1},
		"another case":      {use(t, "GET", "https://api.example/V1/a").with(auth), Count{}, now, -1},
		"another query":     {use(t, "GET", "https://api.example/v1/a?b=1").with(auth), Count{}, now, -1},
		"a query key twice": {use(t, "GET", "https://api.example/v1/a?a=1&a=2").with(auth), Count{}, now, -1},
	} {
		r := s.Decide(c.use, Spent{"api": c.spent, "other": {Used: 99}}, c.at)
		if c.left < 0 && r.Deny == nil || c.left >= 0 && (len(r.Put) != 1 || r.Put[0].Left != c.left) {
			t.Errorf("%s: %+v, %+v", about, r.Put, r.Deny)
		}
	}
}

func TestDecide_ModesAndForks(t *testing.T) {
	t.Parallel()
	add := Issued{Grant: given(t, "add", `{"hosts": ["*.add.example"], "mode": "add", "sites": [{"in": "header",
		"name": "X-Key"}], "uses": 1}`)}
	narrow := Issued{Grant: given(t, "narrow", `{"hosts": ["*.add.example"], "paths": ["/v1/*"], "mode": "add",
		"sites": [{"in": "header", "name": "X-Key"}]}`)}
	exact := Issued{Grant: given(t, "exact", `{"hosts": ["b.add.example"], "mode": "add",
		"sites": [{"in": "header", "name": "X-Key"}]}`)}
	require := Issued{Grant: given(t, "require", `{"hosts": ["r.example"], "mode": "require", "paths": ["/v1/*"],
		"query": {"a": "*"}, "sites": [{"in": "bearer"}, {"in": "header", "name": "X-Key"}, {"in": "query", "name": "a"}]}`),
		Placeholder: p1, Aliases: []string{p2}}
	gone := Issued{Grant: given(t, "gone", `{"hosts": ["r.example"], "sites": [{"in": "bearer"}]}`), Placeholder: p3,
		Revoked: true}
	body := Issued{Grant: given(t, "body", `{"hosts": ["body.example"], "sites": [{"in": "json", "pointer": "/token",
		"methods": ["POST"], "paths": ["/login"]}], "uses": 2}`), Placeholder: "qWeRtYuIoPaSdFgHjKlZxCvB"}
	git := Issued{Grant: given(t, "git", `{"hosts": ["git.example"], "sites": [{"in": "git"}], "paths":
		["/acme/*"]}`), Placeholder: "ZxCvBnMaSdFgHjKlQwErTyUi"}
	at := Issued{Grant: given(t, "at", `{"hosts": ["at.example"], "sites": [{"in": "header", "name": "X-Key",
		"methods": ["GET"], "paths": ["/v1/*"]}]}`), Placeholder: "PoIuYtReWqLkJhGfDsAmNbVc"}
	s := set(t, add, narrow, exact, require, gone, body, git, at)
	for _, c := range []struct {
		about string
		use   Use
		put   string // the grant; "" if refused, "-" if the request is unchanged
	}{
		{"added", use(t, "GET", "https://a.add.example/"), "add"},
		{"added in place of another", use(t, "GET", "https://a.add.example/").with("X-Key: other"), "add"},
		{"several headers", use(t, "GET", "https://a.add.example/").with("X-Key: a", "x-key: b"), ""},
		{"the longer path wins", use(t, "GET", "https://a.add.example/v1/x"), "narrow"},
		{"the longer host wins", use(t, "GET", "https://b.add.example/v1/x"), "exact"},
		{"not added without TLS", use(t, "GET", "http://a.add.example/"), "-"},
		{"not added to a trace", use(t, "TRACE", "https://a.add.example/"), ""},
		{"required", use(t, "GET", "https://r.example/v1/x"), ""},
		{"required, another credential", use(t, "GET", "https://r.example/v1/x").with("Authorization: Bearer x"), ""},
		{"required, in another spelling", use(t, "GET", "https://r.example//v1/x").with("Authorization: Bearer x"), ""},
		{"required, in upper case", use(t, "GET", "https://r.example/V1/x").with("Authorization: Bearer x"), ""},
		{"required, with a query", use(t, "GET", "https://r.example/v1/x?b=1").with("Authorization: Bearer x"), ""},
		{"required, and another credential", use(t, "GET", "https://r.example/v1/x").with("Authorization: Bearer "+p1,
			"X-Key: other"), ""},
		{"required, and another in the query", use(t, "GET", "https://r.example/v1/x?a=other").
			with("Authorization: Bearer " + p1), ""},
		{"not required there", use(t, "GET", "https://r.example/v2"), "-"},
		{"there", use(t, "GET", "https://r.example/v1/x").with("Authorization: Bearer " + p1), "require"},
		{"an alias", use(t, "GET", "https://r.example/v1/x").with("Authorization: Bearer " + p2), "require"},
		{"an alias elsewhere", use(t, "GET", "https://x.example/v1/x").with("Authorization: Bearer " + p2), ""},
		{"revoked", use(t, "GET", "https://r.example/v2").with("Authorization: Bearer " + p3), ""},
		{"in a body", use(t, "POST", "https://body.example/login"), "body"},
		{"a site of some requests", use(t, "GET", "https://at.example/v1/x").with("X-Key: " + at.Placeholder), "at"},
		{"not of others", use(t, "GET", "https://at.example/v2").with("X-Key: " + at.Placeholder), ""},
		{"not in all bodies", use(t, "POST", "https://body.example/gists"), "-"},
		{"git", use(t, "GET", "https://git.example/acme/web.git/info/refs?service=git-upload-pack").
			with(basicOf("u", git.Placeholder)), "git"},
		{"git pushes", use(t, "POST", "https://git.example/acme/web.git/git-receive-pack").
			with(basicOf("u", git.Placeholder)), "git"},
		{"another repository", use(t, "POST", "https://git.example/evil/web.git/git-receive-pack").
			with(basicOf("u", git.Placeholder)), ""},
		{"not git", use(t, "POST", "https://git.example/acme/web.git/settings").with(basicOf("u", git.Placeholder)), ""},
	} {
		r := s.Decide(c.use, nil, now)
		got := "-"
		switch {
		case r.Deny != nil && r.Put == nil:
			got = ""
		case len(r.Put) == 1:
			got = r.Put[0].Grant
		case len(r.Put) > 1:
			got = "several"
		}
		if got != c.put {
			t.Errorf("%s: %q, want %q: %+v", c.about, got, c.put, r.Deny)
		}
	}
	if r := s.Decide(use(t, "GET", "https://a.add.example/"), Spent{"add": {Used: 1}}, now); r.Deny == nil {
		t.Errorf("a grant that is used up is added, or left out silently: %+v", r)
	}
	if r := s.Decide(use(t, "POST", "https://body.example/login"), Spent{"body": {Used: 2}}, now); r.Put != nil {
		t.Errorf("a grant that is used up is in a body: %+v", r)
	}
	r := s.Decide(use(t, "GET", "https://r.example/v2").with("Authorization: Bearer "+p3), nil, now)
	if r.Deny.Hint != "coppice grant box gone" {
		t.Errorf("the hint about a revoked grant is %q", r.Deny.Hint)
	}
}

// TestDecide_BoundsItsWork sends the largest head that the gate accepts, in the most fields.
func TestDecide_BoundsItsWork(t *testing.T) {
	t.Parallel()
	s := set(t, Issued{Grant: given(t, "api", api), Placeholder: p1})
	u := use(t, "GET", "https://evil.example/")
	u.HTTP.Query = strings.Repeat("a&", 1<<16) + "a=" + p1
	u.HTTP.Path += strings.Repeat("/\x01", 1<<16)
	if r := s.Decide(u, nil, now); r.Deny == nil || len(r.Deny.Reason+r.Deny.Hint) > 1000 {
		t.Errorf("%+v", r)
	}
	u = use(t, "GET", "https://api.example"+u.HTTP.Path).with("X-Key: " + p1)
	g := Issued{Grant: given(t, "api", strings.Replace(api, `{`, `{"paths": ["/x"], `, 1)), Placeholder: p1}
	if r := set(t, g).Decide(u, nil, now); r.Deny == nil || len(r.Deny.Reason+r.Deny.Hint) > 2000 ||
		strings.Contains(r.Deny.Reason, "\x01") {
		t.Errorf("%+v", r)
	}
}

func TestDecide_PutsSeveralSecrets(t *testing.T) {
	t.Parallel()
	key := Issued{Grant: given(t, "key", `{"hosts": ["a.example"], "sites": [{"in": "header", "name": "X-Key"}]}`),
		Placeholder: p1}
	user := Issued{Grant: given(t, "user", `{"hosts": ["a.example"], "sites": [{"in": "basic", "part": "user"}]}`),
		Placeholder: p2}
	password := Issued{Grant: given(t, "password", `{"hosts": ["a.example"], "sites": [{"in": "basic"}]}`),
		Placeholder: p3}
	all := use(t, "GET", "https://a.example/").with("X-Key: "+p1, basicOf(p2, p3))
	if r := set(t, key, user, password).Decide(all, nil, now); r.Deny != nil || len(r.Put) != 3 {
		t.Errorf("%+v, %+v", r.Put, r.Deny)
	}
	// What one grant refuses is refused, though others allow theirs.
	user.Revoked = true
	if r := set(t, key, user, password).Decide(all, nil, now); r.Deny == nil || r.Put != nil {
		t.Errorf("%+v", r)
	}
}

func TestNewSet_RefusesAmbiguousGrants(t *testing.T) {
	t.Parallel()
	g := func(name, text, placeholder string) Issued {
		return Issued{Grant: given(t, name, text), Placeholder: placeholder}
	}
	const bearer = `{"hosts": ["a.example"], "sites": [{"in": "bearer"}]}`
	const adds = `{"hosts": ["a.example"], "mode": "add", "sites": [{"in": "bearer"}]}`
	const basic = `{"hosts": ["a.example", "b.example"], "mode": "add", "sites": [{"in": "basic"}]}`
	const below = `{"hosts": ["a.example"], "paths": ["/v1/*"], "mode": "add", "sites": [{"in": "bearer"}]}`
	for about, all := range map[string][]Issued{
		"no placeholder":          {g("a", bearer, "")},
		"a short placeholder":     {g("a", bearer, p1[:15])},
		"the same name":           {g("a", bearer, p1), g("a", bearer, p2)},
		"the same placeholder":    {g("a", bearer, p1), g("b", bearer, p1)},
		"one in the other":        {g("a", bearer, p1), g("b", bearer, "x"+p1)},
		"both add":                {g("a", adds, ""), g("b", adds, "")},
		"one adds":                {g("a", adds, ""), g("b", bearer, p1)},
		"another scheme":          {g("a", adds, ""), g("b", basic, "")},
		"a grant that is invalid": {{Placeholder: p1}},
	} {
		if _, err := NewSet("box", all); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", about, err)
		}
	}
	// Neither is longer, which only a request shows.
	left := g("a", strings.Replace(below, "/v1/*", "/a/*", 1), "")
	right := g("b", strings.Replace(below, "/v1/*", "/*/b", 1), "")
	if r := set(t, left, right).Decide(use(t, "GET", "https://a.example/a/b"), nil, now); r.Deny == nil || r.Put != nil {
		t.Errorf("two grants match equally: %+v", r)
	}
	set(t, g("a", bearer, p1), g("b", bearer, p2))
	set(t, g("a", adds, ""), g("b", below, ""))
	set(t, g("a", adds, ""), Issued{Grant: given(t, "b", adds), Revoked: true})
	if r := (Set{}).Decide(use(t, "GET", "https://a.example/"), nil, now); r.Deny != nil || r.Put != nil {
		t.Errorf("no grants: %+v", r)
	}
}

// FuzzDecide checks what must be true of every request: a secret only leaves to a host, port and method of its grant,
// over TLS, in exchange for a placeholder, and no refusal contains one.
func FuzzDecide(f *testing.F) {
	f.Add("api.example", "GET", "/v1", "key="+p1, "X-Key", "a", true)
	f.Add("evil.example", "POST", "/"+p1, "", "Authorization", "Bearer "+p1, true)
	f.Add("api.example", "GET", "/", "", "Authorization", strings.TrimPrefix(basicOf("u", p1), "Authorization: "), false)
	f.Add("x.sub.example", "GET", "/%2e%2e/", "a=%zz;", "Cookie", "sid="+p1+"; sid=x", true)
	g := given(f, "api", strings.Replace(api, `{`, `{"methods": ["GET"], "uses": 5, `, 1))
	s := set(f, Issued{Grant: g, Placeholder: p1})
	f.Fuzz(func(t *testing.T, host, method, path, query, name, value string, tls bool) {
		u := Use{Port: 443, TLS: tls, Header: http.Header{name: {value}},
			HTTP: policy.HTTPRequest{Method: method, Path: path, Query: query}}
		u.Host, _ = policy.ParseHost(host)
		r := s.Decide(u, nil, now)
		if r.Deny != nil && (r.Put != nil || r.Deny.Reason == "" || strings.Contains(r.Deny.Hint, p1)) {
			t.Fatalf("%+v", r)
		}
		if len(r.Put) == 0 {
			return
		}
		h := u.Host.String()
		if len(r.Put) > 1 || r.Put[0].Placeholder != p1 || method != "GET" || !tls || r.Put[0].Left != 4 ||
			h != "api.example" && !strings.HasSuffix(h, ".sub.example") {
			t.Fatalf("%+v gets %+v", u, r.Put)
		}
		u.Port = 8443
		if other := s.Decide(u, nil, now); other.Deny == nil {
			t.Fatalf("%+v gets %+v", u, other.Put)
		}
	})
}
