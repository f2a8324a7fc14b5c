//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/limit"
)

// told is the content of a reply.
type told struct {
	dnsmessage.Header
	addrs []netip.Addr
	ttl   uint32
}

// unpack parses the gate's reply a to the query m.
func unpack(t *testing.T, m, a []byte) (x told) {
	t.Helper()
	q, _, _, ok := parseQuery(m)
	var d dnsmessage.Message
	if err := d.Unpack(a); err != nil || !ok || !isExact(d, a) {
		t.Fatalf("% x", a)
	}
	if !bytes.HasPrefix(a[dnsHeader:], q.question) {
		t.Fatalf("the question in the reply differs: %q", a)
	}
	x.Header = d.Header
	for _, r := range d.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			x.addrs = append(x.addrs, netip.AddrFrom4(b.A))
		case *dnsmessage.AAAAResource:
			x.addrs = append(x.addrs, netip.AddrFrom16(b.AAAA))
		}
		x.ttl = r.Header.TTL
	}
	return x
}

func TestResolver_AnswersSandbox(t *testing.T) { overBoth(t, testResolverAnswersSandbox) }

func testResolverAnswersSandbox(t *testing.T, k kind) {
	t.Parallel()
	pub, pub6 := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:2800:220:1::1")
	b := &book{
		decide: func(r Request) Decision {
			if strings.HasSuffix(r.Host.String(), ".example") || r.Addr == netip.MustParseAddr("10.9.9.9") {
				return Decision{Verdict: Allow, Rule: "examples"}
			}
			return Decision{}
		},
		names: map[string][]netip.Addr{
			"both.example": {pub, pub6}, "four.example": {pub}, "none.example": {}, "twice.example": {pub, pub},
			"rebind.example": addrs("127.0.0.1"), "meta.example": addrs("169.254.169.254"),
			"priv.example":   addrs("192.168.1.1", "10.0.0.1"),
			"mapped.example": addrs("::ffff:10.0.0.1"), "six.example": addrs("fd00:ec2::254", "fe80::1", "::1"),
			"cgnat.example": addrs("100.64.0.1"),
			"mixed.example": append(addrs("10.0.0.1"), pub), "named.example": addrs("10.9.9.9"),
			"nat64.example": addrs("64:ff9b::a00:1"),
			"zero.example":  addrs("0.0.0.0"), "gate.example": addrs("192.0.0.1"),
		},
		ttl: 42 * time.Second,
	}
	s := start(t, k, b, nil)
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{"192.0.0.1:53", "[fdc0:71ce:9a7e::1]:53"} {
			for _, x := range []struct {
				name string
				t    dnsmessage.Type
				code dnsmessage.RCode
				want []netip.Addr
			}{
				{"both.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []netip.Addr{pub}},
				{"bOtH.eXaMpLe", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, []netip.Addr{pub6}},
				{"four.example", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, nil},
				{"twice.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []netip.Addr{pub}},
				{"none.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, nil},
				{"both.example", 65, dnsmessage.RCodeSuccess, nil}, // HTTPS
				{"both.example", 64, dnsmessage.RCodeSuccess, nil}, // SVCB
				{"both.example", 16, dnsmessage.RCodeSuccess, nil}, // TXT
				{"both.example", 255, dnsmessage.RCodeSuccess, nil},
				{"nobody.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"denied.test", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"denied.test", 65, dnsmessage.RCodeNameError, nil},
				{"example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"rebind.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"meta.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"priv.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"mapped.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"six.example", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, nil},
				{"cgnat.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"nat64.example", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, nil},
				{"zero.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"gate.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"mixed.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, []netip.Addr{pub}},
				{"named.example", dnsmessage.TypeA, dnsmessage.RCodeSuccess, addrs("10.9.9.9")},
				{"1.0.0.127.in-addr.arpa", 12, dnsmessage.RCodeNameError, nil},
				{"127.0.0.1", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
				{"secret\x00.both.example", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil},
			} {
				m := ask(x.name, x.t, network == "udp")
				got := unpack(t, m, s.must(t, "ask", m, network, server))
				if got.RCode != x.code || !slices.Equal(got.addrs, x.want) || len(got.addrs) > 0 && (got.ttl < 1 || got.ttl > 42) ||
					!got.Response || !got.RecursionAvailable || !got.RecursionDesired {
					t.Errorf("%s of %s for %q %d: %+v", network, server, x.name, x.t, got)
				}
			}
		}
	}
	asked := b.sought()
	for _, n := range asked {
		if !strings.HasSuffix(n, ".example") {
			t.Errorf("%q was looked up outside", n)
		}
	}
	if n := slices.Index(asked, "both.example"); slices.Contains(asked[n+1:], "both.example") {
		t.Errorf("looked up twice within its TTL: %q", asked)
	}
	s.denied(t, DNS, "no rule allows the name")
	s.denied(t, DNS, "loopback")
	s.denied(t, DNS, "metadata")
	s.denied(t, DNS, "CGNAT")
	if e := s.denied(t, DNS, "not a host name"); e.Name != "127.0.0.1" && e.Name != `secret\x00.both.example` {
		t.Errorf("%+v", e)
	}
}

// TestResolver_ForwardsNoOddQuery checks that a query that no ordinary program sends is answered with an error or not
// at all, and is never forwarded.
func TestResolver_ForwardsNoOddQuery(t *testing.T) { overBoth(t, testResolverForwardsNoOddQuery) }

func testResolverForwardsNoOddQuery(t *testing.T, k kind) {
	t.Parallel()
	b := &book{decide: func(Request) Decision { return Decision{Verdict: Allow} }, names: map[string][]netip.Addr{}}
	s := start(t, k, b, nil)
	two := ask("a.example", dnsmessage.TypeA, false)
	two[5] = 2
	two = append(two, ask("b.example", dnsmessage.TypeA, false)[dnsHeader:]...)
	for what, x := range map[string]struct {
		m    []byte
		code byte
	}{
		"two questions": {two, 1}, "an update": {append([]byte{0, 1, 5 << 3, 0}, two[4:]...), 4},
		"a header":  {two[:dnsHeader], 1},
		"600 bytes": {append(ask("a.example", dnsmessage.TypeA, false), make([]byte, 600)...), 1},
	} {
		if a := s.must(t, "ask", x.m, "udp", "192.0.0.1:53"); a[3]&15 != x.code {
			t.Errorf("%s: % x", what, a)
		}
	}
	for what, m := range map[string][]byte{"nothing": {}, "an answer": append([]byte{0, 1, 0x81, 0x80}, two[4:]...),
		"eleven bytes": two[:11]} {
		if a, err := s.do("ask", m, "udp", "192.0.0.1:53", "none"); err == nil {
			t.Errorf("%s gets a reply: % x", what, a)
		}
	}
	// Other servers do not exist, over UDP or TCP.
	for _, server := range []string{"8.8.8.8:53", "1.1.1.1:853", "[2001:4860:4860::8888]:53", "169.254.169.254:53",
		"127.0.0.53:53"} {
		for _, network := range []string{"udp", "tcp"} {
			if a, err := s.do("ask", ask("a.example", dnsmessage.TypeA, false), network, server, "none"); err == nil {
				t.Errorf("%s of %s answers: % x", network, server, a)
			}
		}
	}
	if asked := b.sought(); len(asked) != 0 {
		t.Errorf("looked up outside: %q", asked)
	}
}

// TestResolver_ReportsFailedLookup checks that a lookup without an address is recorded with its reason: the rule alone
// would suggest that the name can be reached.
func TestResolver_ReportsFailedLookup(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		addrs []netip.Addr
		err   error
		code  dnsmessage.RCode
		want  string
	}{
		{nil, &net.DNSError{Err: "no such host", IsNotFound: true}, dnsmessage.RCodeNameError, "no such host"},
		{nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}, dnsmessage.RCodeServerFailure,
			"server misbehaving"},
		{nil, &net.DNSError{Err: "i/o timeout", IsTimeout: true}, dnsmessage.RCodeServerFailure, "no answer in time"},
		{nil, context.DeadlineExceeded, dnsmessage.RCodeServerFailure, "no answer in time"},
		{nil, errors.New("a\x1b[0m"), dnsmessage.RCodeServerFailure, `a\x1b[0m`},
		{nil, nil, dnsmessage.RCodeSuccess, "the name has no addresses"},
	} {
		var got []Event
		now := func() time.Time { return noon }
		j, wait := newJournal(now, func(e Event) { got = append(got, e) })
		b := &book{decide: func(Request) Decision { return Decision{Verdict: Allow, Rule: "a.example:443"} }}
		lookup := func(context.Context, string) ([]netip.Addr, time.Duration, error) { return c.addrs, 0, c.err }
		r := newResolver(func() Policy { return b }, newPins(), j, newDesk(j, nil, Bounds{}), lookup, now)
		m := ask("a.example", dnsmessage.TypeA, false)
		if x := unpack(t, m, r.answer(t.Context(), m, 0)); x.RCode != c.code {
			t.Errorf("%s: code %v, expected %v", c.want, x.RCode, c.code)
		}
		j.close()
		wait()
		want := Event{Time: noon, Kind: KindEnd, Proto: DNS, Name: "a.example", Verdict: Allow, Rule: "a.example:443",
			Reason: "not resolved: " + c.want, Count: 1}
		if len(got) != 2 || got[0].Kind != KindDNS || !reflect.DeepEqual(got[1], want) {
			t.Errorf("%+v, expected %+v", got, want)
		}
	}
}

// TestLookups_AreRateLimited checks the limit of lookups, since an allowed name can carry data to its name server.
func TestLookups_AreRateLimited(t *testing.T) {
	t.Parallel()
	b := &book{decide: func(r Request) Decision { return Decision{Verdict: Allow} }, names: map[string][]netip.Addr{}}
	j, wait := newJournal(func() time.Time { return noon }, func(Event) {})
	r := newResolver(func() Policy { return b }, newPins(), j, newDesk(j, nil, Bounds{}), b.lookup,
		func() time.Time { return noon })
	for i := range limit.DNSLookupBurst + 100 {
		m := ask("x"+strings.Repeat("a", i%50)+".example", dnsmessage.TypeA, false)
		a := r.answer(t.Context(), m, 0)
		if x := unpack(t, m, a); (x.RCode == dnsmessage.RCodeNameError) != (i < limit.DNSLookupBurst) {
			t.Fatalf("query %d: %+v", i, x)
		}
	}
	if n := len(b.sought()); n != limit.DNSLookupBurst {
		t.Errorf("%d lookups were made", n)
	}
	j.close()
	wait()
	// A lookup that cannot be recorded is not made.
	if x := r.answer(t.Context(), ask("y.example", dnsmessage.TypeA, false),
		0); x[3]&15 != byte(dnsmessage.RCodeServerFailure) || len(b.sought()) != limit.DNSLookupBurst {
		t.Errorf("% x", x)
	}
}
