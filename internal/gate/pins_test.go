package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func addrs(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestPins_Expire(t *testing.T) {
	t.Parallel()
	p := newPins()
	a, b := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	p.put(name("one.example"), []netip.Addr{a}, time.Minute, noon)
	p.put(name("two.example"), []netip.Addr{a, b}, time.Second, noon.Add(time.Second)) // bounded to five
	if got := p.of(a, noon); !slices.Equal(got, []policy.Host{name("two.example"), name("one.example")}) {
		t.Errorf("the most recently resolved name must be first: %v", got)
	}
	if _, ttl, ok := p.answer(name("one.example"), noon.Add(59*time.Second)); !ok || ttl != time.Second {
		t.Errorf("%v %v", ttl, ok)
	}
	if _, _, ok := p.answer(name("one.example"), noon.Add(time.Minute)); ok {
		t.Error("an answer outlives its TTL")
	}
	if got, ttl, ok := p.answer(name("two.example"), noon.Add(time.Second)); !ok || ttl != minTTL ||
		!slices.Equal(got, []netip.Addr{a, b}) {
		t.Errorf("%v %v %v", got, ttl, ok)
	}
	if p.put(name("three.example"), nil, time.Minute, noon) {
		t.Error("an answer without addresses is pinned")
	}
	// Another answer does not remove addresses that programs remember.
	p.put(name("one.example"), []netip.Addr{b}, 1000*time.Hour, noon.Add(2*time.Second))
	if got := p.of(a, noon.Add(2*time.Second)); !slices.Contains(got, name("one.example")) {
		t.Errorf("%v", got)
	}
	if _, ttl, _ := p.answer(name("one.example"), noon.Add(2*time.Second)); ttl != maxTTL {
		t.Errorf("%v", ttl)
	}
	later := noon.Add(time.Minute + pinGrace)
	if got := p.of(a, later); len(got) != 0 {
		t.Errorf("%v", got)
	}
	p.sweep(later)
	if got := p.of(b, later); !slices.Equal(got, []policy.Host{name("one.example")}) || p.size != 1 || len(p.addrs) != 1 ||
		len(p.names) != 1 {
		t.Errorf("%v, %d pairs of %d addresses and %d names", got, p.size, len(p.addrs), len(p.names))
	}
}

func TestPins_AreBounded(t *testing.T) {
	t.Parallel()
	p := newPins()
	at := netip.MustParseAddr("198.51.100.1")
	for i := range limit.PinNames {
		if !p.put(name(fmt.Sprint("n", i)), []netip.Addr{at}, time.Minute, noon) {
			t.Fatal(i)
		}
	}
	if p.put(name("more"), []netip.Addr{at}, time.Minute, noon) || len(p.of(at, noon)) != limit.PinNames {
		t.Error("the names of an address are not bounded")
	}
	if !p.put(name("more"), []netip.Addr{at}, time.Minute, noon.Add(time.Hour)) || p.size != 1 {
		t.Error("expired pins count against the limit")
	}
	for i := range 1000 {
		if !p.put(name("round.robin"), []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})}, time.Minute,
			noon.Add(time.Hour+time.Duration(i))) {
			t.Fatal(i)
		}
	}
	if p.size != limit.PinAddrs+1 || len(p.of(netip.AddrFrom4([4]byte{198, 18, 3, 231}), noon)) != 1 {
		t.Errorf("%d pairs", p.size)
	}
	p = newPins()
	for i := range limit.Pins {
		if !p.put(name(fmt.Sprint("n", i)), []netip.Addr{netip.AddrFrom4([4]byte{20, byte(i >> 16), byte(i >> 8), byte(i)})},
			time.Minute, noon) {
			t.Fatal(i)
		}
	}
	if p.put(name("more"), []netip.Addr{at}, time.Minute, noon) {
		t.Error("the number of pins is not bounded")
	}
	if p.put(name("x"), make([]netip.Addr, limit.PinAddrs+1), time.Minute, noon.Add(time.Hour)) {
		t.Error("the size of an answer is not bounded")
	}
	if !p.put(name("more"), []netip.Addr{at}, time.Minute, noon.Add(time.Hour)) || p.size != 1 || len(p.names) != 1 {
		t.Errorf("%d pairs, %d names", p.size, len(p.names))
	}
}

// TestPins_AgreeInBothDirections checks that both directions always agree, and that a name leads only to addresses that
// were returned for it.
func TestPins_AgreeInBothDirections(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, now := newPins(), noon
		told := map[policy.Host]map[netip.Addr]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "s")) * time.Second)
			if rapid.IntRange(0, 9).Draw(t, "sweep") == 0 {
				p.sweep(now)
			}
			n := name(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"))
			var as []netip.Addr
			for range rapid.IntRange(0, 5).Draw(t, "n") {
				as = append(as, netip.AddrFrom4([4]byte{20, 0, 0, byte(rapid.IntRange(0, 9).Draw(t, "a"))}))
			}
			ttl := time.Duration(rapid.IntRange(0, 5000).Draw(t, "ttl")) * time.Second
			if p.put(n, as, ttl, now) {
				if told[n] == nil {
					told[n] = map[netip.Addr]time.Time{}
				}
				for _, a := range as {
					told[n][a] = now.Add(boundTTL(ttl) + pinGrace)
				}
			}
			pairs := 0
			for a, names := range p.addrs {
				for n := range names {
					pairs++
					if _, ok := p.names[n].reaches[a]; !ok {
						t.Fatalf("%s leads to %v in one direction only", n, a)
					}
				}
				for _, n := range p.of(a, now) {
					if !now.Before(told[n][a]) {
						t.Fatalf("%s leads to %v, which was not in an answer", n, a)
					}
				}
			}
			if pairs != p.size {
				t.Fatalf("%d pairs, not %d", pairs, p.size)
			}
			for n, as := range told {
				for a, until := range as {
					if now.Before(until) && !slices.Contains(p.of(a, now), n) {
						t.Fatalf("%s does not lead to %v", n, a)
					}
				}
			}
		}
	})
}

func FuzzPins(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, now := newPins(), noon
		for ; len(b) >= 4; b = b[4:] {
			now = now.Add(time.Duration(b[0]) * time.Minute)
			p.put(name(fmt.Sprint("n", b[1]%8)),
				[]netip.Addr{netip.AddrFrom4([4]byte{20, 0, 0, b[2]}), netip.AddrFrom4([4]byte{20, 0, 1, b[3]})},
				time.Duration(b[2])*time.Second, now)
			if b[3] == 0 {
				p.sweep(now)
			}
		}
		p.sweep(now.Add(2 * maxTTL))
		if p.size != 0 || len(p.names) != 0 || len(p.addrs) != 0 {
			t.Fatalf("%d pairs, %d names, %d addresses are left", p.size, len(p.names), len(p.addrs))
		}
	})
}

// paper is a policy in the form of a table.
type paper map[Request]Decision

func (p paper) Decide(r Request) Decision { return p[r] }

func TestRule_DecidesByName(t *testing.T) {
	t.Parallel()
	pub, priv, free := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("10.1.2.3"),
		netip.MustParseAddr("1.1.1.1")
	pins := newPins()
	for _, n := range []policy.Host{name("yes.example"), name("no.example"), name("look.example"), name("ask.example")} {
		pins.put(n, []netip.Addr{pub}, time.Minute, noon)
	}
	pins.put(name("only.example"), []netip.Addr{netip.MustParseAddr("93.184.216.35")}, time.Minute, noon)
	pins.put(name("in.example"), []netip.Addr{priv}, time.Minute, noon)
	allow := Decision{Verdict: Allow, Rule: "r"}
	p := paper{
		{TCP, name("yes.example"), pub, 80, nil}:                       allow,
		{TCP, name("yes.example"), pub, 443, nil}:                      allow,
		{TCP, name("yes.example"), pub, 22, nil}:                       {Verdict: Allow, TLS: true},
		{TCP, name("yes.example"), pub, 8443, nil}:                     {Verdict: Allow},
		{TCP, name("look.example"), pub, 8443, nil}:                    {Verdict: Inspect},
		{TCP, name("look.example"), pub, 443, nil}:                     {Verdict: Inspect},
		{TCP, name("ask.example"), pub, 99, nil}:                       {Verdict: Ask},
		{TCP, name("yes.example"), pub, 98, nil}:                       {Verdict: 77},
		{TCP, name("in.example"), priv, 80, nil}:                       allow,
		{TCP, name("in.example"), priv, 81, nil}:                       allow,
		{TCP, name(""), priv, 81, nil}:                                 allow,
		{TCP, name(""), free, 53, nil}:                                 allow,
		{TCP, name(""), netip.MustParseAddr("0.0.0.0"), 1, nil}:        allow,
		{TCP, name(""), netip.MustParseAddr("::ffff:1.1.1.1"), 1, nil}: allow,
	}
	for _, x := range []struct {
		addr    netip.Addr
		port    uint16
		verdict Verdict
		tls     bool
	}{
		{pub, 80, Allow, false}, {pub, 443, Inspect, true}, {pub, 22, Allow, true}, {pub, 25, Deny, false},
		{pub, 8443, Inspect, false}, {pub, 99, Ask, false}, {pub, 98, Deny, false},
		{netip.MustParseAddr("93.184.216.35"), 80, Deny, false},
		{priv, 80, Deny, false}, {priv, 81, Allow, false},
		{free, 53, Allow, false}, {free, 54, Deny, false},
		{netip.MustParseAddr("0.0.0.0"), 1, Deny, false}, {netip.MustParseAddr("::ffff:1.1.1.1"), 1, Deny, false},
	} {
		r := rule(p, pins, TCP, x.addr, x.port, noon)
		if r.verdict != x.verdict || r.mustHail != x.tls || r.verdict != Allow && r.why.Reason == "" && x.port != 98 {
			t.Errorf("%v:%d: %+v", x.addr, x.port, r)
		}
	}
	r := rule(p, pins, TCP, pub, 443, noon)
	for sni, ok := range map[string]bool{"yes.example": true, "look.example": true, "no.example": false, "": false,
		"other.example": false} {
		if n, got := r.hailed(name(sni)); got != ok {
			t.Errorf("%q: %+v %v", sni, n, got)
		}
	}
	if r := rule(p, pins, TCP, pub, 80, noon.Add(24*time.Hour)); r.verdict != Deny {
		t.Errorf("the pin has not expired: %+v", r)
	}
}

func TestSpecialAddresses(t *testing.T) {
	t.Parallel()
	for _, a := range addrs("0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"192.0.0.1", "192.0.0.2",
		"::", "::1", "::127.0.0.1", "::ffff:1.1.1.1", "::ffff:0:1.1.1.1", "ff02::1", "fdc0:71ce:9a7e::1") {
		if never(a) == "" {
			t.Errorf("a policy can allow %v", a)
		}
	}
	if never(netip.Addr{}) == "" || never(netip.MustParseAddr("fe80::1%eth0")) == "" {
		t.Error("a policy can allow an invalid address")
	}
	for _, a := range addrs("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "127.0.0.1", "169.254.169.254",
		"100.64.0.1", "100.100.100.200",
		"192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "168.63.129.16", "192.0.0.170",
		"fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "64:ff9b::a00:1", "64:ff9b::e000:1", "64:ff9b:1::1", "2002:a00:1::",
		"2001::1", "2001:db8::1", "100::1", "4000::1") {
		if special(a) == "" {
			t.Errorf("%v is not special", a)
		}
	}
	for _, a := range addrs("1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "198.20.0.1", "11.0.0.1",
		"2606:4700:4700::1111", "64:ff9b::101:101", "192.31.196.1", "2001:4860:4860::8888", "2a00:1450:4001::1") {
		if special(a) != "" || never(a) != "" {
			t.Errorf("%v is special: %s%s", a, special(a), never(a))
		}
	}
}
