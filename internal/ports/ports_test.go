package ports

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// none is the Domain of a daemon without one.
var none Domain

func TestParseHost(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]Target{
		"3000--box-0a.localhost":       {3000, "box", "0a"},
		"3000--box-0a.localhost:7070":  {3000, "box", "0a"},
		"80--a--b-0a.LocalHost":        {80, "a--b", "0a"},
		"65535--Box-1-0a.localhost":    {65535, "box-1", "0a"},
		"1--0123456789ab.localhost":    {1, "", "0123456789ab"},
		"1--a-0123456789ab.localhost":  {1, "a", "0123456789ab"},
		"1--1--a-0123456789.localhost": {1, "1--a", "0123456789"},
	} {
		if got, ok := none.ParseHost(host); !ok || got != want || !none.IsPreview(host) {
			t.Errorf("%s: %+v %v", host, got, ok)
		}
	}
	for _, host := range []string{
		"", "localhost", "box.localhost", "3000-box.localhost", "--box.localhost", "3000--.localhost", "3000--box",
		"3000--box.localhost.", "03000--box.localhost",
		"0--box.localhost", "65536--box.localhost", "+1--box.localhost", "3000--a.b.localhost", "3000--a_b.localhost",
		"3000---a.localhost", "3000--a-.localhost", "3000--a--0a.localhost",
		"3000--box.localhost.example.com", "3000--box.localhost:", "3000--box.localhost:0", "3000--box.localhost:x",
		"3000--box.localhost:70 70", "[::1]:80",
		"3000--" + strings.Repeat("a", 58) + ".localhost", "3000--\u212a.localhost", "user@3000--box.localhost",
		"3000--box.localhost/x", "127.0.0.1:80", "localhost:80",
	} {
		if got, ok := none.ParseHost(host); ok {
			t.Errorf("%q: %+v", host, got)
		}
	}
	for _, host := range []string{"", "localhost", "localhost:80", ".localhost", "127.0.0.1:80", "[::1]:80", "example.com",
		"xlocalhost"} {
		if none.IsPreview(host) {
			t.Errorf("%q is the host of a port", host)
		}
	}
	if !none.IsPreview("a.b.localhost:80") {
		t.Error("a host below localhost reaches the API")
	}
}

func TestHost_ParsesBack(t *testing.T) {
	t.Parallel()
	const id = "0123456789ab"
	for name, want := range map[string]string{
		"box": "80--box-" + id, "a.b": "80--" + id, "a_b": "80--" + id, "a-": "80--" + id, "": "80--" + id,
		"a--b":                  "80--a--b-" + id,
		id:                      "80--" + id + "-" + id,
		strings.Repeat("a", 47): "80--" + id,
		strings.Repeat("a", 46): "80--" + strings.Repeat("a", 46) + "-" + id,
	} {
		got := none.Host(80, name, id)
		if got != want+".localhost" {
			t.Errorf("%s: %s", name, got)
		}
		p, ok := none.ParseHost(got)
		if !ok || p.Port != 80 || p.ID != id || !p.IsHostOf(name, id) || p.IsHostOf(name, "ba9876543210") ||
			p.Name != "" && p.IsHostOf("other", id) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	for port, want := range map[int]string{7070: "x:7070", 80: "x", 0: "x"} {
		if got := overHost("x", port, false); got != want {
			t.Errorf("%d: %s", port, got)
		}
	}
}

func FuzzParseHost(f *testing.F) {
	f.Add("3000--box-0a.localhost:7070")
	f.Add("80--a--b-0a.localhost")
	f.Fuzz(func(t *testing.T, host string) {
		p, ok := none.ParseHost(host)
		if !ok {
			return
		}
		if !none.IsPreview(host) {
			t.Errorf("%q is parsed, but reaches the API", host)
		}
		if p.Port < 1 || p.Port > 65535 || !plain(p.ID) || p.Name != "" && !plain(p.Name) {
			t.Errorf("%q: %+v", host, p)
		}
		bare, _, _ := strings.Cut(host, ":")
		if none.Host(p.Port, p.Name, p.ID) != lower(bare) || !p.IsHostOf(p.Name, p.ID) {
			t.Errorf("%q is parsed as %+v", host, p)
		}
	})
}

var (
	someKey  = Key{1, 2, 3}
	someTime = time.Unix(1_800_000_000, 0)
)

// check reads a token, and checks that it is for a use, a port and a sandbox.
func (k Key) check(token string, want claim, now time.Time) (claim, bool) {
	c, good := k.read(token, want.use, want.port, now)
	if c.sandbox != want.sandbox {
		return claim{}, false
	}
	return c, good
}

func TestTokens(t *testing.T) {
	t.Parallel()
	c := claim{use: forLink, sandbox: "0123456789ab", port: 3000, expires: someTime.Unix() + 60}
	token := someKey.sign(c)
	if got, ok := someKey.check(token, c, someTime); !ok || got != c {
		t.Fatalf("%+v %v", got, ok)
	}
	if got, ok := someKey.check(token, c, someTime.Add(time.Minute)); ok || got != c {
		t.Errorf("an expired token: %+v %v", got, ok)
	}
	for name, want := range map[string]claim{
		"another port":    {use: forLink, sandbox: c.sandbox, port: 3001},
		"another sandbox": {use: forLink, sandbox: "0123456789ac", port: 3000},
		"another use":     {use: forCookie, sandbox: c.sandbox, port: 3000},
	} {
		if _, ok := someKey.check(token, want, someTime); ok {
			t.Errorf("the token is valid for %s", name)
		}
	}
	if _, ok := (Key{9}).check(token, c, someTime); ok {
		t.Error("the token is valid with another key")
	}
	for i := range token {
		for _, by := range []byte{'0', 'A', '.', '=', '-', ' ', 0, 0xff} {
			if token[i] == by {
				continue
			}
			if _, ok := someKey.check(token[:i]+string([]byte{by})+token[i+1:], c, someTime); ok {
				t.Errorf("the token is valid with byte %d changed to %q", i, by)
			}
		}
	}
	for _, bad := range []string{"", ".", "..", "....", token[1:], token[:len(token)-1],
		token[:len(token)-9] + "\n" + token[len(token)-9:], token + "\r", token + "A", token + "=", " " + token,
		strings.Repeat("1.", 300),
		strings.Replace(token, "1.0123456789ab.3000.", "1.0123456789ab.3000.+", 1),
		strings.Replace(token, ".3000.", ".03000.", 1)} {
		if _, ok := someKey.check(bad, c, someTime); ok {
			t.Errorf("%q is valid", bad)
		}
	}
}

func FuzzCheck(f *testing.F) {
	c := claim{use: forLink, sandbox: "0123456789ab", port: 3000, expires: someTime.Unix() + 60}
	good := someKey.sign(c)
	f.Add(good)
	f.Add(someKey.sign(claim{use: forLink, sandbox: "0123456789ab", port: 3000, expires: 1}))
	f.Fuzz(func(t *testing.T, token string) {
		if got, ok := someKey.check(token, c, someTime); ok && someKey.sign(got) != token {
			t.Errorf("%q is valid, but not what sign returns", token)
		}
	})
}

func TestLoadKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, err := LoadKey(dir)
	if err != nil || a == (Key{}) {
		t.Fatal(a, err)
	}
	path := filepath.Join(dir, keyName)
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 || st.Size() != 32 {
		t.Errorf("%v, %v", st, err)
	}
	if b, err := LoadKey(dir); err != nil || b != a {
		t.Errorf("%v, %v", b, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %q", left)
	}
	for name, spoil := range map[string]func() error{
		"short":     func() error { return os.WriteFile(path, []byte("x"), 0o600) },
		"a link":    func() error { return errors.Join(os.Remove(path), os.Symlink("elsewhere", path)) },
		"directory": func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		_ = os.RemoveAll(path)
		if _, err := LoadKey(dir); err != nil {
			t.Fatal(err)
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(dir); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLoadKey_ReplacesExposedKey covers a mode that a process of the same user has set, such as one in a locked
// workspace: others may have read the key.
func TestLoadKey_ReplacesExposedKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, keyName)
	for _, mode := range []os.FileMode{0o644, 0o640, 0o604} {
		before, err := LoadKey(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		after, err := LoadKey(dir)
		st, serr := os.Stat(path)
		if err != nil || serr != nil || after == before || st.Mode() != 0o600 {
			t.Errorf("%o: %v, the same key: %t, %v, %v", mode, err, after == before, st, serr)
		}
	}
}

func TestHoldsToken(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"Bearer cpc_x": true, "cpc_": true, "bearer  cpc_1": true, "a, cpc_b": true, "token:cpc_1": true, "acpc_ cpc_": true,
		"": false, "Bearer x": false, "Bearer abcpc_d": false, "Bearer a.cpc_d": false, "Bearer -cpc_cpc_": false,
		"cp c_": false,
	} {
		if holdsToken(s) != want {
			t.Errorf("%q: want %v", s, want)
		}
	}
}

func TestTakeParam(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]struct {
		rest   string
		tokens int
	}{
		"":                                       {"", 0},
		"a=1":                                    {"a=1", 0},
		"coppice_preview=x":                      {"", 1},
		"a=1&coppice_preview=x&b=%zz&a=2":        {"a=1&b=%zz&a=2", 1},
		"coppice%5fpreview=x&%63oppice_preview=": {"", 2},
		"coppice_preview=%zz":                    {"", 0},
		"a;coppice_preview=x&b":                  {"a;coppice_preview=x&b", 0},
		"coppice_preview2=x":                     {"coppice_preview2=x", 0},
		"x?coppice_preview=1":                    {"x?coppice_preview=1", 0},
	} {
		tokens, rest := takeParam(query)
		if rest != want.rest || len(tokens) != want.tokens {
			t.Errorf("%q: %q %q", query, tokens, rest)
		}
	}
}

func TestStaysHere(t *testing.T) {
	t.Parallel()
	for cookie, want := range map[string]bool{
		"a=b": true, "a=b; Path=/; HttpOnly": true, "a=Domain=x": true, "domain=x": true, "": false, "=coppice_preview=x": false,
		"a=b; Domain=localhost": false, "a=b;domain=.localhost": false, "a=b; DOMAIN =localhost": false,
		"a=b;\tDomain=x": false, "a=b; Domain": false,
		"a=b; Domain=3000--box.localhost": false, "a=b\x00; Path=/": false, "a=b\x0b;Domain=x": false,
		"coppice_preview=x": false, " coppice_preview =x; Path=/": false, "coppice_preview": false,
		"coppice_preview2=x": true,
	} {
		if staysHere(cookie) != want {
			t.Errorf("%q: %v", cookie, !want)
		}
	}
}

func TestDomain_IsAHostName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Domain{
		"preview.example.com": {Name: "preview.example.com"}, "Example.COM:8443": {"example.com", 8443},
		"192-0-2-1.sslip.io": {Name: "192-0-2-1.sslip.io"},
	} {
		if d, err := ParseDomain(text); err != nil || d != want {
			t.Errorf("%s: %+v, %v", text, d, err)
		}
	}
	for _, text := range []string{
		"", ".", "localhost", "com", "a.localhost", "192.0.2.1", "example.com.", ".example.com", "*.example.com",
		"a..example.com", "a_b.example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:x",
		"http://example.com", "example.com/x", "[::1]", "-a.example.com", "a b.example.com", "ex\u212ample.com",
		strings.Repeat("a", 64) + ".com", strings.Repeat("aaa.", 60) + "com",
	} {
		if d, err := ParseDomain(text); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %+v, %v", text, d, err)
		}
	}
}

func TestDomain_IsOfPreviewsBesidesLocalhost(t *testing.T) {
	t.Parallel()
	d := Domain{Name: "p.example.com"}
	if got := d.Host(80, "a_b", "0123456789ab"); got != "80--0123456789ab.p.example.com" {
		t.Error(got)
	}
	for _, host := range []string{"80--box-0a.p.example.com", "80--BOX-0A.P.example.com:8443", "80--box-0a.localhost"} {
		if got, ok := d.ParseHost(host); !ok || got != (Target{80, "box", "0a"}) || !d.IsPreview(host) {
			t.Errorf("%s: %+v, %v", host, got, ok)
		}
	}
	for _, host := range []string{
		"p.example.com", "80--box.example.com", "80--box.xp.example.com", "80--box.p.example.com.evil.com", "80--box.",
		"80--box", ".p.example.com", "80--box.evil.com",
	} {
		if got, ok := d.ParseHost(host); ok || d.IsPreview(host) {
			t.Errorf("%s: %+v", host, got)
		}
	}
	direct, proxied := Listener{Addr: netip.MustParseAddrPort("10.0.0.1:8443")}, Listener{Proxied: true}
	for _, c := range []struct {
		d    Domain
		l    Listener
		want int
	}{{d, direct, 8443}, {d, proxied, 0}, {Domain{d.Name, 9000}, direct, 9000}, {Domain{d.Name, 9000}, proxied, 9000},
		{none, direct, 8443}} {
		if got := c.d.portOf(c.l); got != c.want {
			t.Errorf("%+v, %+v: %d", c.d, c.l, got)
		}
	}
}
