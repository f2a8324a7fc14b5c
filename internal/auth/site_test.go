package auth

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestSiteOf(t *testing.T) {
	t.Parallel()
	local := netip.MustParseAddr("10.1.2.3")
	allowed := []string{"box.example.com", "192.0.2.9"}
	for host, want := range map[string]Site{
		"localhost": Own, "LOCALHOST:80": Own, "box.localhost": Own, "a.b.localhost:1": Own,
		"127.0.0.1": Own, "127.9.9.9:65535": Own, "[::1]": Own, "[::1]:8080": Own, "[::ffff:127.0.0.1]": Own,
		"10.1.2.3:8080": Own, "[::ffff:10.1.2.3]:1": Own, "box.example.com": Own, "Box.Example.COM:443": Own,
		"192.0.2.9": Own,

		"3000--box.localhost": Preview, "3000--box.localhost:8080": Preview, "3000--BOX.localhost": Preview,
		"80--a.p.example.com": Preview, "80--A.P.example.com:8443": Preview,

		"": Foreign, "evil.com": Foreign, "evil.com:80": Foreign, "localhost.evil.com": Foreign,
		"127.0.0.1.evil.com": Foreign,
		"evillocalhost":      Foreign, "localhost.": Foreign, ".localhost": Foreign, "a..localhost": Foreign,
		"10.1.2.4":              Foreign,
		"80--a.box.example.com": Foreign, "80--a.": Foreign, "p.example.com": Foreign, "x.p.example.com": Foreign,
		"80--a.x.p.example.com": Foreign, "80--.p.example.com": Foreign, "--a.p.example.com": Foreign,
		"80--a.p.example.com.evil.com": Foreign,
		"x.box.example.com":            Foreign, "example.com": Foreign, "localhost:": Foreign, "localhost:x": Foreign,
		"localhost:1:2":    Foreign,
		"localhost:123456": Foreign, "a@localhost": Foreign, "local host": Foreign, "localhost/": Foreign,
		"localhost\x00": Foreign,
		"[::1":          Foreign, "::1": Foreign, "[127.0.0.1]": Foreign, "[::1]x": Foreign, "[::1%25lo]": Foreign,
		"[fe80::1]":          Foreign,
		"3000--box.evil.com": Foreign, "3000--box": Foreign, "0x7f.1": Foreign, "2130706433": Foreign, "localhoſt": Foreign,
	} {
		if got := SiteOf(host, local, allowed, "p.example.com"); got != want {
			t.Errorf("%q is %d, want %d", host, got, want)
		}
	}
	if SiteOf("0.0.0.0", netip.Addr{}, nil, "") != Foreign {
		t.Error("without a local address, any address is Own")
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		origin, site, host, scheme string
		own                        bool
	}{
		{"", "", "localhost:1", "http", true},
		{"", "none", "localhost:1", "http", true},
		{"http://localhost:1", "same-origin", "localhost:1", "http", true},
		{"http://LOCALHOST:1", "", "localhost:1", "http", true},
		{"http://localhost", "", "localhost:80", "http", true},
		{"https://box:443", "", "box", "https", true},
		{"https://box", "", "box", "", true},
		{"http://[::1]:5", "", "[::1]:5", "http", true},
		{"http://[::1]", "", "[::1]:80", "http", true},
		{"", "cross-site", "localhost:1", "http", false},
		{"", "same-site", "localhost:1", "http", false},
		{"http://localhost:1", "cross-site", "localhost:1", "http", false},
		{"null", "", "localhost:1", "http", false},
		{"http://evil.com", "", "localhost:1", "http", false},
		{"http://localhost:2", "", "localhost:1", "http", false},
		{"http://127.0.0.1:1", "", "localhost:1", "http", false},
		{"http://3000--box.localhost:1", "", "localhost:1", "http", false},
		{"https://localhost:1", "", "localhost:1", "http", false},
		{"http://localhost:1", "", "localhost:1", "https", false},
		{"http://localhost:1/", "", "localhost:1", "http", false},
		{"http://a@localhost:1", "", "localhost:1", "http", false},
		{"http://localhost:1 http://evil.com", "", "localhost:1", "http", false},
		{"file://", "", "localhost:1", "", false},
		{"chrome-extension://localhost:1", "", "localhost:1", "", false},
		{"http://", "", "", "", false},
	} {
		if got := SameOrigin(c.origin, c.site, c.host, c.scheme); got != c.own {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// FuzzSite checks that no name that another party could own is Own, and that no origin with another name is
// accepted.
func FuzzSite(f *testing.F) {
	f.Add("localhost:8080", "http://localhost:8080")
	f.Add("[::1]:1", "http://[::1]:1")
	f.Add("3000--box.localhost", "null")
	f.Add("127.0.0.1.evil.com", "https://evil.com")
	f.Fuzz(func(t *testing.T, host, origin string) {
		site := SiteOf(host, netip.MustParseAddr("10.1.2.3"), []string{"box.example.com"}, "")
		low := strings.ToLower(host)
		if site != Foreign && !strings.Contains(low, "localhost") && !strings.HasPrefix(low, "127.") &&
			!strings.HasPrefix(low, "10.1.2.3") &&
			!strings.HasPrefix(low, "[") && !strings.Contains(low, "box.example.com") {
			t.Errorf("%q is Own", host)
		}
		if name, _ := hostName(host); site != Foreign && strings.ContainsAny(name, "/@\\ %\x00\r\n") {
			t.Errorf("%q is Own", host)
		}
		if site != Foreign && origin != "" && SameOrigin(origin, "", host, "") {
			u, err := url.Parse(origin)
			if name, _ := hostName(host); err != nil || !strings.EqualFold(u.Hostname(), name) {
				t.Errorf("a page of %q may call %q", origin, host)
			}
		}
	})
}
