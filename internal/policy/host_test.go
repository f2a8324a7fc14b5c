package policy

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParseHost(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com":                         "example.com",
		"EXAMPLE.Com.":                        "example.com",
		"a-b.example":                         "a-b.example",
		"xn--bcher-kva.example":               "xn--bcher-kva.example",
		"1password.com":                       "1password.com",
		"r3---sn-4g5e.googlevideo.com":        "r3---sn-4g5e.googlevideo.com",
		"_http._tcp.deb.debian.org":           "_http._tcp.deb.debian.org",
		"localhost":                           "localhost",
		"0x7g.example":                        "0x7g.example",
		"1.2.3.example":                       "1.2.3.example",
		strings.Repeat("a", 63) + ".org":      strings.Repeat("a", 63) + ".org",
		strings.Repeat("a.", 126) + "a":       strings.Repeat("a.", 126) + "a",
		strings.Repeat("a.", 126) + "a" + ".": strings.Repeat("a.", 126) + "a",
	} {
		if got, err := ParseHost(in); err != nil || got.String() != want {
			t.Errorf("ParseHost(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{
		"", ".", "..", "a..b", ".a", "a.b..", " a", "a b", "a\x00.com", "a\n.com", "a\r\nHost: b", "a@b", "a/b", "a%2eb",
		"a:80", "a?b", "a#b", "a\\b", "[::1]", "*", "*.a", "a.*",
		"-a.com", "a-.com", "a.-b", "_", "a._", "_a", "_a.com", "x._a.com", "a_b.com", "__a.b.c", "a_.b.c",
		"127.0.0.1", "::1", "::ffff:10.0.0.1", "fe80::1", "127.1", "0x7f.1", "2130706433", "017700000001", "0x7f000001", "0x",
		"1.2.3.4.", "1.2.3.4.5", "127.0.0.01", "a.0x10", "a.123", "0X7F.1", "1.2.3.08",
		"b\u00fccher.example", "g\u0456thub.com", "\u3002com", "a\u3002b", "１.com", "\xff.com", "a\u00ad.com",
		strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 126) + "aa",
	} {
		if got, err := ParseHost(in); !fault.Is(err, fault.Invalid) || !got.IsZero() || fault.HintOf(err) == "" {
			t.Errorf("ParseHost(%q) = %q, %v, hint %q; want a refusal", in, got, err, fault.HintOf(err))
		}
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, host string
		want          bool
	}{
		{"example.com", "example.com", true},
		{"EXAMPLE.com.", "example.com", true},
		{"example.com", "www.example.com", false},
		{"*.example.com", "www.example.com", true},
		{"*.example.com", "a.b.example.com", true},
		{"*.example.com", "example.com", false},
		{"*.example.com", "evilexample.com", false},
		{"*.example.com", "example.com.evil.org", false},
		{"*.com", "example.com", true},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Matches(host(t, c.host)); got != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.host, got)
		}
	}
	for _, in := range []string{"", "*", "*.", "*..", "**.a", "*a.com", "a.*.com", "*.*.com", "*.1.2.3.4", "*.127",
		"*.10.0.0.0/8"} {
		if p, err := ParsePattern(in); !fault.Is(err, fault.Invalid) || !p.IsZero() {
			t.Errorf("ParsePattern(%q) = %q, %v; want a refusal", in, p, err)
		}
	}
	if (Pattern{}).Matches(Host{}) || (Pattern{below: true}).Matches(host(t, "a.b")) {
		t.Error("the zero pattern matches")
	}
}

func TestPattern_Wide(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{"*.com": true, "*.co.uk": true, "*.github.io": true, "*.example.com": false,
		"github.io": false, "com": false} {
		p, err := ParsePattern(in)
		if err != nil || (p.Wide() != "") != want {
			t.Errorf("%s: %q, %v", in, p.Wide(), err)
		}
	}
	for i, s := range shared {
		if h, err := ParseHost(s); err != nil || h.String() != s || i > 0 && shared[i-1] >= s {
			t.Errorf("%q: %v, or out of order", s, err)
		}
	}
}

func host(t interface{ Fatal(...any) }, s string) Host {
	h, err := ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestHost_RoundTrips checks that a parsed name is parsed as itself again, in upper and lower case.
func TestHost_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`[a-zA-Z0-9_.*-]{1,24}`).Draw(t, "host")
		h, err := ParseHost(s)
		if err != nil {
			return
		}
		for _, again := range []string{h.String(), strings.ToUpper(s), h.String() + "."} {
			if g, err := ParseHost(again); err != nil || g != h {
				t.Fatalf("%q is parsed as %q, but %q as %q, %v", s, h, again, g, err)
			}
		}
	})
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.com", "127.1", "0x7f.1", "a\x00.com", "_a.b.c", "xn--a.b", "*.com",
		"*.10.0.0.0/8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if h, err := ParseHost(s); err == nil {
			if again, err := ParseHost(h.String()); err != nil || again != h ||
				strings.ContainsAny(h.String(), " \x00\r\n@/%:*") {
				t.Fatalf("%q is parsed as %q, which is parsed as %q, %v", s, h, again, err)
			}
		} else if !h.IsZero() || !fault.Is(err, fault.Invalid) {
			t.Fatalf("%q: %q, %v", s, h, err)
		}
		if p, err := ParsePattern(s); err == nil {
			if again, err := ParsePattern(p.String()); err != nil || again != p {
				t.Fatalf("%q is parsed as %q, which is parsed as %q, %v", s, p, again, err)
			}
		}
	})
}
