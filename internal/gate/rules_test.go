package gate

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/policy"
)

func network(t testing.TB, allow, deny string) policy.Network {
	t.Helper()
	n := policy.Network{Mode: policy.NetRules}
	for list, denies := range map[string]bool{allow: false, deny: true} {
		for s := range strings.FieldsSeq(list) {
			r, err := policy.ParseRule(s, denies)
			if err != nil {
				t.Fatal(err)
			}
			if denies {
				n.Deny = append(n.Deny, r)
			} else {
				n.Allow = append(n.Allow, r)
			}
		}
	}
	return n
}

func TestRules_FromPolicy(t *testing.T) {
	t.Parallel()
	p := Rules(network(t,
		"a.example:8000-8100 *.b.example udp://c.example:123 d.example:22 10.1.0.0/16:5432 93.184.216.0/24:80",
		"d.example *.no.b.example a.example:8000-8050"))
	pub, priv := netip.MustParseAddr("93.184.217.1"), netip.MustParseAddr("10.1.2.3")
	for _, x := range []struct {
		q  Request
		ok bool
	}{
		{Request{Host: name("a.example")}, true}, {Request{Host: name("x.b.example")}, true},
		{Request{Host: name("c.example")}, true},
		{Request{Host: name("b.example")}, false}, {Request{Host: name("d.example")}, false},
		{Request{Host: name("x.no.b.example")}, false}, {Request{Host: name("e.example")}, false},
		{Request{Proto: TCP, Host: name("a.example"), Addr: pub, Port: 8100}, true},
		{Request{Proto: TCP, Host: name("a.example"), Addr: pub, Port: 8050}, false},
		{Request{Proto: UDP, Host: name("a.example"), Addr: pub, Port: 8100}, false},
		{Request{Proto: UDP, Host: name("c.example"), Addr: pub, Port: 123}, true},
		{Request{Proto: TCP, Host: name("a.example"), Addr: priv, Port: 8100}, false},
		{Request{Proto: TCP, Addr: priv, Port: 5432}, true}, {Request{Proto: TCP, Addr: priv, Port: 5433}, false},
		{Request{Addr: priv}, true}, {Request{Addr: netip.MustParseAddr("10.2.0.1")}, false}, {Request{Addr: pub}, false},
		{Request{Proto: ICMP, Host: name("c.example"), Addr: pub}, true}, {Request{Proto: ICMP, Addr: pub}, false},
		{Request{Proto: ICMP, Addr: priv}, true},
		{Request{Proto: DNS, Host: name("a.example"), Port: 53}, false},
		{Request{Proto: TCP, Host: name("a.example")}, false}, {Request{}, false},
	} {
		if d := p.Decide(x.q); (d.Verdict == Allow) != x.ok || d.Verdict == Allow && d.Rule == "" || d.Verdict != Allow &&
			d.Reason == "" {
			t.Errorf("%+v: %+v", x.q, d)
		}
	}
	pins := newPins()
	pins.put(name("a.example"), []netip.Addr{pub, priv}, time.Minute, noon)
	for at, ok := range map[string]bool{"93.184.217.1:8100": true, "93.184.217.1:8000": false, "93.184.217.1:443": false,
		"10.1.2.3:8100": false, "10.1.2.3:5432": true, "93.184.216.9:80": true} {
		to := netip.MustParseAddrPort(at)
		if r := rule(p, pins, TCP, to.Addr(), to.Port(), noon); (r.verdict == Allow) != ok {
			t.Errorf("%s: %+v", at, r)
		}
	}
	n := network(t, "a.example", "")
	n.Ask = true
	if d := Rules(n).Decide(Request{Host: name("new.example")}); d.Verdict != Ask {
		t.Errorf("%+v", d)
	}
	// Deny rules leave other ports of their hosts to be asked about.
	n.Deny = network(t, "", "all.example some.example:443 most.example:1-79 most.example:81-65535 udp://dgram.example").
		Deny
	for host, want := range map[string]Verdict{"all.example": Deny, "some.example": Ask, "most.example": Ask,
		"dgram.example": Ask, "x.local": Deny} {
		if d := Rules(n).Decide(Request{Host: name(host)}); d.Verdict != want {
			t.Errorf("%s: %+v", host, d)
		}
	}
	if d := Rules(policy.Network{}).Decide(Request{Host: name("a.example")}); d.Verdict != Deny {
		t.Errorf("the zero network: %+v", d)
	}
}

// TestRules_Private checks that a rule with private allows its name to lead to addresses inside of organizations on its
// ports, and allows no other ports and no such address without the name.
func TestRules_Private(t *testing.T) {
	t.Parallel()
	p := Rules(network(t, "m.example:8443,private a.example:8443", ""))
	names := map[string][]netip.Addr{
		"m.example": addrs("10.1.2.3", "127.0.0.1", "169.254.169.254", "fd00:ec2::254", "100.100.100.200", "100.64.0.7",
			"fd12::7", "224.0.0.1", "192.0.0.1", "fdc0:71ce:9a7e::1", "64:ff9b::a01:203", "93.184.216.34", "0.0.0.0"),
		"a.example": addrs("127.0.0.1", "10.1.2.3"),
	}
	var got []Event
	now := func() time.Time { return noon }
	j, wait := newJournal(now, func(e Event) { got = append(got, e) })
	pins := newPins()
	b := &book{names: names, ttl: time.Minute}
	r := newResolver(func() Policy { return p }, pins, j, newDesk(j, nil, Bounds{}), b.lookup, now)
	m := ask("m.example", dnsmessage.TypeA, false)
	v4 := addrs("10.1.2.3", "100.64.0.7", "93.184.216.34")
	if x := unpack(t, m, r.answer(t.Context(), m, 0)); !slices.Equal(x.addrs, v4) {
		t.Errorf("%v, expected %v", x.addrs, v4)
	}
	m = ask("m.example", dnsmessage.TypeAAAA, false)
	if x := unpack(t, m, r.answer(t.Context(), m, 0)); !slices.Equal(x.addrs, addrs("fd12::7")) {
		t.Errorf("%v", x.addrs)
	}
	m = ask("a.example", dnsmessage.TypeA, false)
	if x := unpack(t, m, r.answer(t.Context(), m, 0)); x.RCode != dnsmessage.RCodeNameError {
		t.Errorf("%+v", x)
	}
	j.close()
	wait()
	want := Event{Time: noon, Kind: KindDeny, Proto: DNS, Name: "a.example", Addr: netip.MustParseAddr("127.0.0.1"),
		Count: 1, Rule: "a.example:8443 ()",
		Reason: "the name leads to a loopback address, which only a rule for the address allows",
		Fix:    "127.0.0.1:8443", Hint: `if that is meant: network: {allow: ["127.0.0.1:8443"]}`}
	if e := got[len(got)-1]; !reflect.DeepEqual(e, want) {
		t.Errorf("%+v, expected %+v", e, want)
	}
	// For a connection, pinned addresses are decided again with the port.
	pins.put(name("a.example"), addrs("100.64.0.7"), time.Minute, noon)
	pins.put(name("m.example"), addrs("127.0.0.1", "10.1.2.3", "93.184.216.34"), time.Minute, noon)
	for at, ok := range map[string]bool{"10.1.2.3:8443": true, "10.1.2.3:443": false, "127.0.0.1:8443": false,
		"93.184.216.34:8443": true, "10.1.2.4:8443": false, "169.254.169.254:8443": false} {
		to := netip.MustParseAddrPort(at)
		if r := rule(p, pins, TCP, to.Addr(), to.Port(), noon); (r.verdict == Allow) != ok {
			t.Errorf("%s: %+v", at, r)
		}
	}
	// Of two names with one address, only the one whose rule has private allows the address.
	shared := rule(p, pins, TCP, netip.MustParseAddr("100.64.0.7"), 8443, noon)
	if _, ok := shared.hailed(name("a.example")); ok {
		t.Errorf("%+v", shared)
	}
	if _, ok := shared.hailed(name("m.example")); !ok {
		t.Errorf("%+v", shared)
	}
	// Private does not allow an address that is not inside.
	lying := policyFunc(func(Request) Decision { return Decision{Verdict: Ask, Private: true} })
	if r := rule(lying, pins, TCP, netip.MustParseAddr("127.0.0.1"), 8443, noon); r.verdict != Deny {
		t.Errorf("%+v", r)
	}
}

// TestNames_ExistForReachablePorts checks that a name resolves if and only if one of its ports can be reached.
func TestNames_ExistForReachablePorts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := policy.Network{Mode: policy.NetRules}
		h := name("a.example")
		for range rapid.IntRange(0, 4).Draw(t, "rules") {
			host, err := policy.ParsePattern(rapid.SampledFrom([]string{"a.example", "*.example", "b.example"}).Draw(t, "host"))
			if err != nil {
				t.Fatal(err)
			}
			low := rapid.Uint16Range(1, 20).Draw(t, "low")
			r := policy.Rule{
				Denies: rapid.Bool().Draw(t, "denies"), Host: host,
				Protocol: rapid.SampledFrom([]policy.Protocol{policy.TCP, policy.UDP}).Draw(t, "protocol"),
				Ports:    []policy.Ports{{Low: low, High: low + rapid.Uint16Range(0, 9).Draw(t, "more")}},
			}
			if r.Denies {
				n.Deny = append(n.Deny, r)
			} else {
				n.Allow = append(n.Allow, r)
			}
		}
		any := false
		for port := range uint16(40) {
			for _, proto := range []policy.Protocol{policy.TCP, policy.UDP} {
				any = any || n.Decide(policy.Request{Host: h, Port: port, Protocol: proto}).Verdict == policy.Allow
			}
		}
		if got := Rules(n).Decide(Request{Host: h}).Verdict == Allow; got != any {
			t.Fatalf("%v, and %v of its ports: %+v", got, any, n)
		}
	})
}
