//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// serverTLS returns a configuration with a certificate that no client verifies.
func serverTLS(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"a.example"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// record is a server that stores what it receives.
type record struct {
	mu  sync.Mutex
	got []byte
}

func (r *record) serve(c net.Conn) {
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b)
		r.mu.Lock()
		r.got = append(r.got, b[:n]...)
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (r *record) all() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.got)
}

func TestTLS_RequiresAllowedName(t *testing.T) { overBoth(t, testTLSRequiresAllowedName) }

func testTLSRequiresAllowedName(t *testing.T, k kind) {
	t.Parallel()
	at, bare := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.35")
	conf := serverTLS(t)
	retry := conf.Clone()
	retry.CurvePreferences = []tls.CurveID{tls.CurveP384} // no client sends a key share for it at first
	answer := func(conf *tls.Config) func(net.Conn) {
		return func(c net.Conn) {
			x := tls.Server(c, conf)
			b, err := io.ReadAll(x)
			if err == nil {
				x.Write(append([]byte(x.ConnectionState().ServerName+" "), b...))
				x.CloseWrite()
			}
		}
	}
	var raw record
	b := &book{
		// b.example shares the address and is allowed on another port only.
		decide: allowNames("a.example:443", "b.example:80", "a.example:8443", "a.example:444", "93.184.216.35:443",
			"a.example:80"),
		names: map[string][]netip.Addr{"a.example": {at}, "b.example": {at}},
		hosts: map[netip.AddrPort]string{
			netip.AddrPortFrom(at, 443): listen(t, answer(conf)), netip.AddrPortFrom(at, 444): listen(t, answer(retry)),
			netip.AddrPortFrom(at, 8443): listen(t, raw.serve), netip.AddrPortFrom(bare, 443): listen(t, answer(conf)),
		},
		ttl: time.Minute,
	}
	allow := b.decide
	b.decide = func(r Request) Decision {
		d := allow(r)
		d.TLS = r.Port == 8443 || r.Port == 444
		return d
	}
	s := start(t, k, b, nil)
	s.must(t, "look", nil, "a.example")
	s.must(t, "look", nil, "b.example")

	for _, x := range [][]string{
		{"a.example:443", "a.example"}, {"a.example:443", "A.Example"}, {"a.example:443", "a.example", "1.2"},
		{"93.184.216.34:443", "a.example"},
		{"a.example:444", "a.example"}, {"a.example:444", "a.example", "1.2"},
	} {
		if got := s.must(t, "tls", []byte("hello"), x...); !bytes.HasSuffix(got, []byte(" hello")) ||
			!bytes.EqualFold(got[:9], []byte("a.example")) {
			t.Errorf("%q: %q", x, got)
		}
	}
	if got := s.must(t, "tls", []byte("hello"), "93.184.216.35:443", ""); string(got) != " hello" {
		t.Errorf("an address that the policy names: %q", got)
	}
	for _, x := range [][]string{
		{"a.example:443", "b.example"}, {"b.example:443", "b.example"}, {"a.example:443", "other.test"},
		{"a.example:443", ""}, {"a.example:443", "b.example", "1.2"},
		{"a.example:444", "b.example"},
	} {
		if got, err := s.do("tls", []byte("hello"), x...); err == nil {
			t.Errorf("%q: %q", x, got)
		}
	}
	s.denied(t, TCP, "is for b.example")
	s.denied(t, TCP, "names no server")

	hello := handmade(sni("a.example"), offers13)
	for what, x := range map[string]struct {
		wire []byte
		why  string
	}{
		"http":      {[]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), "not TLS"},
		"ssh":       {[]byte("SSH-2.0-x\r\n"), "not TLS"},
		"ECH":       {records(handmade(sni("a.example"), ext(0xfe0d, 1, 2, 3)), 99), "encrypted_client_hello"},
		"two names": {records(handmade(sni("a.example"), sni("b.example")), 99), "malformed"},
		"a second name": {append(records(hello, 99), records(handmade(sni("b.example"), offers13), 30)...),
			"a different server name"},
	} {
		for _, size := range []string{"1", "1000"} {
			if got, err := s.do("pieces", x.wire, "a.example:8443", size); err == nil && len(got) > 0 {
				t.Errorf("%s: %q", what, got)
			}
		}
		s.denied(t, TCP, x.why)
	}
	if got := raw.all(); bytes.Contains(got, []byte("GET")) || bytes.Contains(got, []byte("SSH")) ||
		bytes.Contains(got, []byte("b.example")) || bytes.Contains(got, []byte{0xfe, 0x0d}) {
		t.Errorf("the host got %q", got)
	}
	// No part of a ClientHello is forwarded before it is complete.
	if got, err := s.do("exchange", records(hello, 10)[:60], "tcp", "a.example:8443"); err == nil && len(got) > 0 {
		t.Errorf("%q", got)
	}
	s.denied(t, TCP, "closed before its ClientHello")
	e := s.wait(t, "the end of TLS",
		func(e Event) bool { return e.Kind == KindEnd && e.Port == 443 && e.In > 0 && e.Reason == "" })
	if e.Name != "a.example" || e.Rule != "a.example:443" {
		t.Errorf("%+v", e)
	}
}

// TestTLS_RequiresAllowedNameOnOtherPorts covers a rule for a port that need not be TLS: if it is TLS, it must be for
// an allowed name.
func TestTLS_RequiresAllowedNameOnOtherPorts(t *testing.T) {
	overBoth(t, testTLSRequiresAllowedNameOnOtherPorts)
}

func testTLSRequiresAllowedNameOnOtherPorts(t *testing.T, k kind) {
	t.Parallel()
	at := netip.MustParseAddr("93.184.216.34")
	conf := serverTLS(t)
	retry := conf.Clone()
	retry.CurvePreferences = []tls.CurveID{tls.CurveP384}
	answer := func(conf *tls.Config) func(net.Conn) {
		return func(c net.Conn) {
			x := tls.Server(c, conf)
			if b, err := io.ReadAll(x); err == nil {
				x.Write(append([]byte(x.ConnectionState().ServerName+" "), b...))
				x.CloseWrite()
			}
		}
	}
	var raw record
	n := policy.Network{Mode: policy.NetRules, Allow: []policy.Rule{
		httpRule(t, "a.example:22,8443,8444,8445", nil), httpRule(t, "b.example:80", nil), httpRule(t, "c.example:8443",
			func(r *policy.Rule) { r.MaxBytes = 100 }),
	}}
	b := &book{
		decide: Rules(n).Decide, names: map[string][]netip.Addr{"a.example": {at}, "b.example": {at}, "c.example": {at}},
		ttl: time.Minute,
		hosts: map[netip.AddrPort]string{
			netip.AddrPortFrom(at, 8443): listen(t, answer(conf)), netip.AddrPortFrom(at, 8444): listen(t, answer(retry)),
			netip.AddrPortFrom(at, 8445): listen(t, raw.serve),
			netip.AddrPortFrom(at, 22): listen(t, func(c net.Conn) { // speaks first
				c.Write([]byte("SSH-2.0-x\r\n"))
				io.Copy(c, c)
			}),
		},
	}
	s := start(t, k, b, nil)
	for _, host := range []string{"c.example", "b.example", "a.example"} { // the last one is the name that is recorded
		s.must(t, "look", nil, host)
	}
	for _, x := range [][]string{
		{"93.184.216.34:8443", "a.example"}, {"93.184.216.34:8443", "a.example", "1.2"}, {"93.184.216.34:8443", ""},
		{"93.184.216.34:8444", "a.example"}, {"93.184.216.34:8444", "a.example", "1.2"}, {"93.184.216.34:8444", ""},
	} {
		if got := s.must(t, "tls", []byte("hello"), x...); !bytes.HasSuffix(got, []byte(" hello")) {
			t.Errorf("%q: %q", x, got)
		}
	}
	for _, x := range [][]string{{"93.184.216.34:8443", "b.example"}, {"93.184.216.34:8443", "other.test"},
		{"93.184.216.34:8444", "b.example", "1.2"}} {
		if got, err := s.do("tls", []byte("hello"), x...); err == nil {
			t.Errorf("%q: %q", x, got)
		}
	}
	s.denied(t, TCP, "is for b.example")
	if got, err := s.do("tls", []byte("hello"), "93.184.216.34:8443", "c.example"); err == nil {
		t.Errorf("beyond the budget of its own name: %q", got)
	}
	s.wait(t, "the budget", func(e Event) bool { return e.Kind == KindEnd && e.Reason == usedUp && e.Name == "c.example" })
	if got := s.must(t, "exchange", []byte("x"), "tcp", "93.184.216.34:22"); string(got) != "SSH-2.0-x\r\nx" {
		t.Errorf("%q", got)
	}
	hello := handmade(sni("a.example"), offers13)
	for what, x := range map[string][]byte{
		"ECH":               records(handmade(sni("a.example"), ext(0xfe0d, 1, 2, 3)), 99),
		"a second name":     append(records(hello, 99), records(handmade(sni("b.example"), offers13), 30)...),
		"a name after none": append(records(handmade(offers13), 99), records(handmade(sni("b.example"), offers13), 30)...),
	} {
		for _, size := range []string{"1", "1000"} {
			if got, err := s.do("pieces", x, "93.184.216.34:8445", size); err == nil && len(got) > 0 {
				t.Errorf("%s: %q", what, got)
			}
		}
	}
	s.denied(t, TCP, "encrypted_client_hello")
	s.denied(t, TCP, "a different server name")
	if got := raw.all(); bytes.Contains(got, []byte("b.example")) || bytes.Contains(got, []byte{0xfe, 0x0d}) {
		t.Errorf("the host got %q", got)
	}
}

func tlsServer(c net.Conn, conf *tls.Config) net.Conn { return tls.Server(c, conf) }
