package policy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParseRule(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com":                    "example.com:443",
		"Example.COM.":                   "example.com:443",
		"tcp://example.com:80":           "example.com:80",
		"*.example.com:443,80,8000-8100": "*.example.com:80,443,8000-8100",
		"example.com:80-90,85-100,101":   "example.com:80-101",
		"example.com:1-65535":            "example.com:1-65535",
		"10.0.0.0/8:5432":                "10.0.0.0/8:5432",
		"10.1.2.3:5432":                  "10.1.2.3:5432",
		"10.1.2.3/32:5432":               "10.1.2.3:5432",
		"udp://192.0.2.1:123":            "udp://192.0.2.1:123",
		"[2001:db8::/32]:443":            "[2001:db8::/32]:443",
		"udp://[2001:DB8:0::1]:53":       "udp://[2001:db8::1]:53",
		"mirror.example,private":         "mirror.example:443,private",
		"mirror.example:80,443,private":  "mirror.example:80,443,private",
		"udp://ntp.example:123,private":  "udp://ntp.example:123,private",
		"*.corp.example:443,private":     "*.corp.example:443,private",
		"!example.com":                   "example.com",
		"!tcp://example.com":             "tcp://example.com",
		"!example.com:25":                "example.com:25",
		"!0.0.0.0/0":                     "0.0.0.0/0",
		"!2001:db8::/32":                 "[2001:db8::/32]",
		"!::1":                           "[::1]",
	} {
		denies := in[0] == '!'
		if denies {
			in = in[1:]
		}
		if got, err := ParseRule(in, denies); err != nil || got.String() != want || got.Denies != denies {
			t.Errorf("ParseRule(%q) = %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", ":443", "*", "*:443", "example.com:", "example.com:0", "example.com:65536", "example.com:0443",
		"example.com:443,", "example.com:90-80", "example.com:80-80", "example.com:-80", "example.com:80-", "example.com:*",
		"example.com:http", "10.0.0.0/8:5432,private", "10.0.0.1:80,private", "[fd00::1]:443,private", "example.com:private",
		"example.com:443,private,80", "example.com:443,private,private", "example.com:443,Private", ",private",
		"udp://example.com,private",
		"https://example.com", "http://example.com/", "tcp:example.com", "tcp://", "udp://example.com", "icmp://1.1.1.1:1",
		"TCP://example.com", "example.com/", "example.com/v1", "user@example.com", "example.com:443:443", "a://tcp://b:1",
		"10.0.0.0/8", "10.1.2.3", "10.0.0.1/8:80", "10.0.0.0/33:80", "10.0.0.0/08:80", "010.0.0.0/8:80", "10.0.0/8:80",
		"127.1:80", "0x7f.1:80", "2130706433:80",
		"::1", "[::1]", "[::1", "[::1]443", "[10.0.0.1]:80", "[example.com]:80", "[::ffff:10.0.0.1]:80", "[::ffff:0:0/96]:80",
		"[fe80::1%eth0]:80", "[fe80::%eth0/64]:80", "2001:db8::1:443", "[]:80",
		" example.com", "example.com ", "example.com\x00", "example.com:443\n",
	} {
		if got, err := ParseRule(in, false); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("ParseRule(%q) = %s, %v, hint %q; want a refusal", in, got, err, fault.HintOf(err))
		}
	}
	if got, err := ParseRule("a.example:443,private", true); err == nil {
		t.Errorf("a deny rule for %s is accepted", got)
	}
	if got, err := ParseRequest("a.example:443,private"); err == nil {
		t.Errorf("%s is accepted as a request", got)
	}
	if got, err := ParseRule("::ffff:10.0.0.1", true); err == nil {
		t.Errorf("a deny rule for %s is accepted", got)
	}
}

func TestRate_ParseAndCompare(t *testing.T) {
	t.Parallel()
	order := []string{"1/h", "59/h", "1/m", "59/m", "1/s", "60/m", "2/s", "1000000/s"}
	var last Rate
	for i, s := range order {
		r, err := ParseRate(s)
		if err != nil || r.String() != s {
			t.Fatalf("%s: %s, %v", s, r, err)
		}
		if i > 0 && last.Compare(r) >= 0 || r.Compare(Rate{}) >= 0 || (Rate{}).Compare(r) <= 0 {
			t.Errorf("%s is not above %s, or not below the zero Rate", r, last)
		}
		last = r
	}
	for _, s := range []string{"", "/", "1", "1/", "/s", "0/s", "01/s", "-1/s", "1.5/s", "1/d", "1/s/s", "1000001/s",
		"99999999999999999999/s", "1 /s"} {
		if r, err := ParseRate(s); !fault.Is(err, fault.Invalid) || r != (Rate{}) {
			t.Errorf("%q: %v, %v", s, r, err)
		}
	}
}

func TestPathsOfRules(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"/", "/*", "/a", "/a/", "/a/*", "/a.b/c-d"} {
		if _, err := parsePath(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", "*", "a", "/a*", "/a/**", "/*/a", "//", "//*", "/a//b", "/./a", "/a/..", "/a/../*",
		"/a?b", "/a#b", "/a%20b", "/a\\b", "/a;b", "/a\x00", "/a\n", "/\xff"} {
		if _, err := parsePath(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v, want a refusal", s, err)
		}
	}
}

func TestCleanPath_RefusesAmbiguousPaths(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"/": "/", "/a%20b": "/a b", "/a/b/": "/a/b/", "/%41": "/A"} {
		if got, ok := cleanPath(in); !ok || got != want {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
	for _, in := range []string{
		"", "a", "*", "http://a/", "//", "//a", "/a//b", "/.", "/..", "/a/./b", "/a/../b", "/%2e%2e/a", "/a/%2E", "/a%2fb",
		"/a%2Fb", "/a\\b", "/a%5cb",
		"/a%252fb", "/a%25b", "/a%00", "/a\x00", "/a%0d%0ab", "/a;x=1", "/a%3bx", "/%", "/%zz", "/%ff", "/\xff", "/a%7f",
	} {
		if got, ok := cleanPath(in); ok {
			t.Errorf("%q is accepted as %q", in, got)
		}
	}
}

// rules draws rules that often overlap.
func rules(denies bool) *rapid.Generator[Rule] {
	return rapid.Custom(func(t *rapid.T) Rule {
		r := Rule{Denies: denies}
		place := rapid.SampledFrom([]string{"a.example", "b.a.example", "*.a.example", "*.example", "c.example",
			"0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "169.254.0.0/16", "169.254.169.254", "8.8.8.0/24", "::/0",
			"64:ff9b::/96", "64:ff9b::a00:0/104", "2606:4700::/32", "fd00::/8", "::1"}).Draw(t, "place")
		if err := r.place(place); err != nil {
			t.Fatal(err)
		}
		ports := rapid.SampledFrom([][]string{{"443"}, {"80"}, {"80", "443"}, {"1-65535"}, {"53"}}).Draw(t, "ports")
		if !denies || rapid.Bool().Draw(t, "has ports") {
			var err error
			if r.Ports, err = parsePorts(ports); err != nil {
				t.Fatal(err)
			}
		}
		r.Protocol = rapid.SampledFrom([]Protocol{TCP, TCP, UDP, ""}).Draw(t, "protocol")
		r.Private = !denies && !r.Host.IsZero() && rapid.IntRange(0, 7).Draw(t, "private") == 7
		if !r.Host.IsZero() && r.Protocol != UDP && rapid.Bool().Draw(t, "http") {
			r.Methods = rapid.SampledFrom([][]string{nil, {"GET"}, {"GET", "POST"}}).Draw(t, "methods")
			r.Paths = rapid.SampledFrom([][]string{nil, {"/a"}, {"/a/*"}, {"/*"}}).Draw(t, "paths")
			if !denies {
				r.Query = rapid.SampledFrom([]map[string]string{nil, {}, {"k": "*"}, {"k": "v"}}).Draw(t, "query")
				r.MaxRequest = rapid.Int64Range(0, 2).Draw(t, "max request")
				r.Rate = rapid.SampledFrom([]Rate{{}, {1, 1e9}, {1, 60e9}}).Draw(t, "rate")
			}
		}
		if !denies {
			r.MaxBytes = rapid.Int64Range(0, 2).Draw(t, "max bytes")
		}
		r.Name = rapid.SampledFrom([]string{"", "", "one"}).Draw(t, "name")
		r.At = Origin{"x.yaml", rapid.IntRange(1, 3).Draw(t, "line")}
		if err := r.settle(); err != nil {
			t.Fatal(err)
		}
		return r
	})
}

func TestRule_ShortFormRoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		denies := rapid.Bool().Draw(t, "denies")
		r := rules(denies).Draw(t, "rule")
		if !r.short() {
			return
		}
		again, err := ParseRule(r.String(), denies)
		if err != nil || again.String() != r.String() {
			t.Fatalf("%s is parsed as %s, %v", r, again, err)
		}
	})
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:443", "10.0.0.0/8:5432", "udp://1.2.3.4:123",
		"[2001:db8::/32]:443", "::1", "a:1-2,3"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, s string, denies bool) {
		r, err := ParseRule(s, denies)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
				t.Fatalf("%q: %v, hint %q", s, err, fault.HintOf(err))
			}
			return
		}
		if again, err := ParseRule(r.String(), denies); err != nil || again.String() != r.String() {
			t.Fatalf("%q is parsed as %s, which is parsed as %s, %v", s, r, again, err)
		}
	})
}
