//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// told is what an answer says.
type told struct {
	code  rcode
	flags uint16
	addrs []netip.Addr
	ttl   uint32
}

// unpack reads an answer of the gate's to m.
func unpack(t *testing.T, m, a []byte) (x told) {
	t.Helper()
	q, _, _, ok := parseQuery(m)
	if len(a) < dnsHeader || !ok {
		t.Fatalf("% x", a)
	}
	x.flags = binary.BigEndian.Uint16(a[2:])
	x.code = rcode(x.flags & 15)
	rest := a[dnsHeader:]
	if !bytes.Equal(rest[:len(q.question)], q.question) {
		t.Fatalf("another question comes back: %q", rest)
	}
	rest = rest[len(q.question):]
	for range binary.BigEndian.Uint16(a[6:]) {
		n := int(binary.BigEndian.Uint16(rest[10:]))
		ip, _ := netip.AddrFromSlice(rest[12 : 12+n])
		x.addrs, x.ttl = append(x.addrs, ip), binary.BigEndian.Uint32(rest[6:])
		rest = rest[12+n:]
	}
	return x
}

func TestNamesAreResolvedByTheGate(t *testing.T) { overBoth(t, testNamesAreResolvedByTheGate) }

func testNamesAreResolvedByTheGate(t *testing.T, k kind) {
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
			"rebind.example": addrs("127.0.0.1"), "meta.example": addrs("169.254.169.254"), "priv.example": addrs("192.168.1.1", "10.0.0.1"),
			"mapped.example": addrs("::ffff:10.0.0.1"), "six.example": addrs("fd00:ec2::254", "fe80::1", "::1"), "cgnat.example": addrs("100.64.0.1"),
			"mixed.example": append(addrs("10.0.0.1"), pub), "named.example": addrs("10.9.9.9"), "nat64.example": addrs("64:ff9b::a00:1"),
			"zero.example": addrs("0.0.0.0"), "gate.example": addrs("192.0.0.1"),
		},
		ttl: 42 * time.Second,
	}
	s := start(t, k, b, nil)
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{"192.0.0.1:53", "[fdc0:71ce:9a7e::1]:53"} {
			for _, x := range []struct {
				name string
				t    qtype
				code rcode
				want []netip.Addr
			}{
				{"both.example", typeA, rcodeOK, []netip.Addr{pub}},
				{"bOtH.eXaMpLe", typeAAAA, rcodeOK, []netip.Addr{pub6}},
				{"four.example", typeAAAA, rcodeOK, nil},
				{"twice.example", typeA, rcodeOK, []netip.Addr{pub}},
				{"none.example", typeA, rcodeOK, nil},
				{"both.example", 65, rcodeOK, nil}, // HTTPS
				{"both.example", 64, rcodeOK, nil}, // SVCB
				{"both.example", 16, rcodeOK, nil}, // TXT
				{"both.example", 255, rcodeOK, nil},
				{"nobody.example", typeA, rcodeNoName, nil},
				{"denied.test", typeA, rcodeNoName, nil},
				{"denied.test", 65, rcodeNoName, nil},
				{"example", typeA, rcodeNoName, nil},
				{"rebind.example", typeA, rcodeNoName, nil},
				{"meta.example", typeA, rcodeNoName, nil},
				{"priv.example", typeA, rcodeNoName, nil},
				{"mapped.example", typeA, rcodeNoName, nil},
				{"six.example", typeAAAA, rcodeNoName, nil},
				{"cgnat.example", typeA, rcodeNoName, nil},
				{"nat64.example", typeAAAA, rcodeNoName, nil},
				{"zero.example", typeA, rcodeNoName, nil},
				{"gate.example", typeA, rcodeNoName, nil},
				{"mixed.example", typeA, rcodeOK, []netip.Addr{pub}},
				{"named.example", typeA, rcodeOK, addrs("10.9.9.9")},
				{"1.0.0.127.in-addr.arpa", 12, rcodeNoName, nil},
				{"127.0.0.1", typeA, rcodeNoName, nil},
				{"secret\x00.both.example", typeA, rcodeNoName, nil},
			} {
				m := ask(x.name, x.t, network == "udp")
				got := unpack(t, m, s.must(t, "ask", m, network, server))
				if got.code != x.code || !slices.Equal(got.addrs, x.want) || len(got.addrs) > 0 && (got.ttl < 1 || got.ttl > 42) || got.flags&(flagQR|flagRA|flagRD) != flagQR|flagRA|flagRD {
					t.Errorf("%s of %s for %q %d: %+v", network, server, x.name, x.t, got)
				}
			}
		}
	}
	asked := b.sought()
	for _, n := range asked {
		if !strings.HasSuffix(n, ".example") {
			t.Errorf("%q was asked outside", n)
		}
	}
	if n := slices.Index(asked, "both.example"); slices.Contains(asked[n+1:], "both.example") {
		t.Errorf("asked twice within its TTL: %q", asked)
	}
	s.denied(t, DNS, "no rule allows the name")
	s.denied(t, DNS, "loopback")
	s.denied(t, DNS, "metadata")
	s.denied(t, DNS, "CGNAT")
	if e := s.denied(t, DNS, "no host name"); e.Name != "127.0.0.1" && e.Name != `secret\x00.both.example` {
		t.Errorf("%+v", e)
	}
}

// What no program would send is answered with an error, or not at all, and never goes on.
func TestOddQueriesStayInside(t *testing.T) { overBoth(t, testOddQueriesStayInside) }

func testOddQueriesStayInside(t *testing.T, k kind) {
	t.Parallel()
	b := &book{decide: func(Request) Decision { return Decision{Verdict: Allow} }, names: map[string][]netip.Addr{}}
	s := start(t, k, b, nil)
	two := ask("a.example", typeA, false)
	two[5] = 2
	two = append(two, ask("b.example", typeA, false)[dnsHeader:]...)
	for what, x := range map[string]struct {
		m    []byte
		code byte
	}{
		"two questions": {two, 1}, "an update": {append([]byte{0, 1, 5 << 3, 0}, two[4:]...), 4}, "a header": {two[:dnsHeader], 1},
		"600 bytes": {append(ask("a.example", typeA, false), make([]byte, 600)...), 1},
	} {
		if a := s.must(t, "ask", x.m, "udp", "192.0.0.1:53"); a[3]&15 != x.code {
			t.Errorf("%s: % x", what, a)
		}
	}
	for what, m := range map[string][]byte{"nothing": {}, "an answer": append([]byte{0, 1, 0x81, 0x80}, two[4:]...), "eleven bytes": two[:11]} {
		if a, err := s.do("ask", m, "udp", "192.0.0.1:53", "none"); err == nil {
			t.Errorf("%s is answered: % x", what, a)
		}
	}
	// Other servers do not exist, by UDP or TCP.
	for _, server := range []string{"8.8.8.8:53", "1.1.1.1:853", "[2001:4860:4860::8888]:53", "169.254.169.254:53", "127.0.0.53:53"} {
		for _, network := range []string{"udp", "tcp"} {
			if a, err := s.do("ask", ask("a.example", typeA, false), network, server, "none"); err == nil {
				t.Errorf("%s of %s answers: % x", network, server, a)
			}
		}
	}
	if asked := b.sought(); len(asked) != 0 {
		t.Errorf("asked outside: %q", asked)
	}
}

// A name that is allowed can carry data to who answers for it, but not much of it.
func TestLookupsAreLimited(t *testing.T) {
	t.Parallel()
	b := &book{decide: func(r Request) Decision { return Decision{Verdict: Allow} }, names: map[string][]netip.Addr{}}
	j, wait := newJournal(func() time.Time { return noon }, func(Event) {})
	r := newResolver(func() Policy { return b }, newPins(), j, newDesk(j, nil, Bounds{}), b.lookup, func() time.Time { return noon })
	for i := range limit.DNSLookupBurst + 100 {
		m := ask("x"+strings.Repeat("a", i%50)+".example", typeA, false)
		a := r.answer(t.Context(), m, 0)
		if x := unpack(t, m, a); (x.code == rcodeNoName) != (i < limit.DNSLookupBurst) {
			t.Fatalf("query %d: %+v", i, x)
		}
	}
	if n := len(b.sought()); n != limit.DNSLookupBurst {
		t.Errorf("%d were asked", n)
	}
	j.close()
	wait()
	// Nothing is asked that would not be told.
	if x := r.answer(t.Context(), ask("y.example", typeA, false), 0); x[3]&15 != byte(rcodeServer) || len(b.sought()) != limit.DNSLookupBurst {
		t.Errorf("% x", x)
	}
}
