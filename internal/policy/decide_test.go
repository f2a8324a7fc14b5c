package policy

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

func networks() *rapid.Generator[Network] {
	return rapid.Custom(func(t *rapid.T) Network {
		return Network{
			Mode:  rapid.SampledFrom([]Net{NetRules, NetRules, NetRules, NetRules, NetOff, "", "odd"}).Draw(t, "mode"),
			Allow: rapid.SliceOfN(rules(false), 0, 5).Draw(t, "allow"),
			Deny:  rapid.SliceOfN(rules(true), 0, 2).Draw(t, "deny"),
			Ask:   rapid.Bool().Draw(t, "ask"),
		}
	})
}

func requests() *rapid.Generator[Request] {
	return rapid.Custom(func(t *rapid.T) Request {
		q := Request{
			Port:     rapid.SampledFrom([]uint16{443, 443, 80, 53, 0}).Draw(t, "port"),
			Protocol: rapid.SampledFrom([]Protocol{TCP, TCP, TCP, UDP, "", "icmp"}).Draw(t, "protocol"),
		}
		if name := rapid.SampledFrom([]string{"", "a.example", "b.a.example", "c.example", "other.org"}).
			Draw(t, "host"); name != "" {
			q.Host = host(t, name)
		}
		if a := rapid.SampledFrom(
			[]string{"", "10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "2002:a01:203::1", "169.254.169.254", "169.254.1.1",
				"8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
				"2606:4700::1111", "fd00:ec2::254", "fe80::1%eth0", "::1", "127.0.0.1", "100.64.1.1", "224.0.0.1", "0.0.0.0",
				"4000::1"}).Draw(t, "addr"); a != "" {
			q.Addr = netip.MustParseAddr(a)
		}
		if rapid.Bool().Draw(t, "http") {
			q.HTTP = &HTTPRequest{
				Method: rapid.SampledFrom([]string{"GET", "get", "POST", "CONNECT", ""}).Draw(t, "method"),
				Path:   rapid.SampledFrom([]string{"/a", "/A", "/a/b", "/a/", "/a/../b", "/a%2fb", "/", ""}).Draw(t, "path"),
				Query:  rapid.SampledFrom([]string{"", "k=v", "k=w", "k=v&k=v", "j=v", "k=v;j=v", "%zz"}).Draw(t, "query"),
			}
		}
		return q
	})
}

func (d Decision) passes() bool { return d.Verdict == Allow || d.Verdict == Inspect }

// TestDecide_DeniesByDefault checks that destinations without a rule are denied, and that an allowed destination has
// the rule that allows it.
func TestDecide_DeniesByDefault(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		d := n.Decide(q)
		if n.Allow = nil; n.Decide(q).passes() {
			t.Fatalf("%s passes without a rule", q)
		}
		if !d.passes() {
			return
		}
		if n.Mode != NetRules || d.Rule == nil || q.Port == 0 {
			t.Fatalf("%s passes: %+v", q, d)
		}
		if d.Verdict == Inspect {
			if q.HTTP != nil {
				t.Fatalf("Decide is to be called again for %s, which has an HTTP request: %+v", q, d)
			}
			return
		}
		r := d.Rule
		if r.Denies || !slices.ContainsFunc(r.Ports, func(p Ports) bool { return p.Low <= q.Port && q.Port <= p.High }) ||
			r.Protocol != q.Protocol {
			t.Fatalf("%s passes by %s, which does not cover it", q, r)
		}
	})
}

// TestDecide_DenyWinsInAnyOrder checks that a deny rule wins over any allow rules.
func TestDecide_DenyWinsInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		before := n.Decide(q)
		shuffled := n
		shuffled.Allow = rapid.Permutation(n.Allow).Draw(t, "allow again")
		shuffled.Deny = rapid.Permutation(n.Deny).Draw(t, "deny again")
		if after := shuffled.Decide(q); !reflect.DeepEqual(before, after) {
			t.Fatalf("%s: %+v, but in another order %+v", q, before, after)
		}
		extra := rules(true).Draw(t, "extra")
		extra.Methods, extra.Paths = nil, nil
		n.Deny = append(slices.Clone(n.Deny), extra)
		after := n.Decide(q)
		if extra.covers(q) && after.Verdict != Deny {
			t.Fatalf("%s is denied by %s, but the decision is %+v", q, extra, after)
		}
		if after.passes() && !before.passes() {
			t.Fatalf("%s passes only with the deny rule %s: %+v", q, extra, after)
		}
	})
}

// TestDecide_DenyRuleOnlyTightens checks that a deny rule can only make the verdict stricter, also with conditions: a
// destination that depends on the HTTP request was not denied before.
func TestDecide_DenyRuleOnlyTightens(t *testing.T) {
	t.Parallel()
	rank := map[Verdict]int{Deny: 0, Ask: 1, Inspect: 2, Allow: 3}
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		before := n.Decide(q)
		n.Deny = append(slices.Clone(n.Deny), rules(true).Draw(t, "extra"))
		if after := n.Decide(q); rank[after.Verdict] > rank[before.Verdict] {
			t.Fatalf("%s: %+v, then %+v", q, before, after)
		}
	})
}

// TestDecide_ConnectionAndRequestsAgree checks that each request is allowed on an allowed connection, denied on a
// denied one, and asked about or denied on one that is asked about.
func TestDecide_ConnectionAndRequestsAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		if q.HTTP == nil || q.HTTP.Method == "CONNECT" || q.Protocol != TCP {
			return
		}
		connection := q
		connection.HTTP = nil
		c, r := n.Decide(connection), n.Decide(q)
		switch {
		case c.Verdict == Allow && r.Verdict != Allow, c.Verdict == Deny && r.Verdict != Deny,
			c.Verdict == Ask && r.Verdict != Ask && r.Verdict != Deny:
			t.Fatalf("%s: the connection %+v, the request %+v", q, c, r)
		}
	})
}

// TestDecide_GuardedAddressNeedsAddressRule checks that an address outside the public internet is allowed only by an
// address rule within the same range, or by a rule with private, whatever its name is and whatever else is allowed.
func TestDecide_GuardedAddressNeedsAddressRule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		in, _, ok := guarded(plain(q.Addr))
		d := n.Decide(q)
		if !ok || !d.passes() {
			return
		}
		if d.Private {
			if !Inside(q.Addr) || !slices.ContainsFunc(n.Allow, func(r Rule) bool { return r.Private && r.covers(q) }) {
				t.Fatalf("%s at %s passes: %+v", q, q.Addr, d)
			}
			return
		}
		if !slices.ContainsFunc(n.Allow, func(r Rule) bool {
			return r.Net.IsValid() && in.Contains(r.Net.Addr()) && r.Net.Bits() >= in.Bits() && r.Net.Contains(plain(q.Addr))
		}) {
			t.Fatalf("%s at %s passes: %+v", q, q.Addr, n.Decide(q))
		}
	})
}

// TestDecide_Private checks that private allows a host to lead to the networks inside of organizations, and to nothing
// else: neither to the metadata services of clouds in these ranges, nor to an IPv4 address in another form.
func TestDecide_Private(t *testing.T) {
	t.Parallel()
	rule := func(s string) Rule {
		r, err := ParseRule(s, false)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	n := Network{Mode: NetRules, Ask: true, Allow: []Rule{rule("m.example:443,private"), rule("a.example:443"),
		{Host: pattern("h.example"), Protocol: TCP, Ports: []Ports{{443, 443}}, Private: true, Paths: []string{"/v1/*"}},
		{Host: pattern("l.example"), Protocol: TCP, Ports: []Ports{{443, 443}}, Paths: []string{"/v1/*"}}}}
	ask := func(name, addr string, port uint16) Decision {
		return n.Decide(Request{Host: host(t, name), Addr: netip.MustParseAddr(addr), Port: port, Protocol: TCP})
	}
	for _, a := range []string{"10.0.0.0", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
		"100.127.255.255", "fc00::1", "fd12:3456::1", "::ffff:10.1.2.3"} {
		if d := ask("m.example", a, 443); d.Verdict != Allow || !d.Private {
			t.Errorf("%s: %+v", a, d)
		}
		if d := ask("h.example", a, 443); d.Verdict != Inspect || !d.Private {
			t.Errorf("%s, decided by the request: %+v", a, d)
		}
		if d := ask("a.example", a, 443); d.Verdict != Deny || d.Fix != "a.example:443,private" ||
			!strings.Contains(d.Reason, "only a rule with private or a rule for the address") {
			t.Errorf("%s, without private: %+v", a, d)
		}
		if d := ask("l.example", a, 443); d.Verdict != Deny || d.Fix != "" || !strings.Contains(d.Hint, "private: true") {
			t.Errorf("%s, without private, decided by the request: %+v", a, d)
		}
		for _, q := range []Request{{Addr: netip.MustParseAddr(a), Port: 443, Protocol: TCP},
			{Host: host(t, "m.example"), Addr: netip.MustParseAddr(a), Port: 80, Protocol: TCP},
			{Host: host(t, "m.example"), Addr: netip.MustParseAddr(a), Port: 443, Protocol: UDP}} {
			if d := n.Decide(q); d.Verdict != Deny || d.Private {
				t.Errorf("%s: %+v", q, d)
			}
		}
	}
	for a, what := range map[string]string{
		"127.0.0.1": "a loopback address", "::1": "a loopback address", "0.0.0.0": "an address of the host itself",
		"169.254.0.1": "a link-local address", "169.254.169.254": metadata, "fe80::1": "a link-local address",
		"100.100.100.200": metadata, "fd00:ec2::254": metadata, "fd00:ec2::23": metadata, "fd20:ce::254": metadata,
		"100.80.80.80": metadata, "100.96.0.96": metadata, "fd00:42::42": metadata, "fd00:c1::a9fe:a9fe": metadata,
		"fd00:100::100:200": metadata, "fd00:a9fe:a9fe::1": metadata,
		"168.63.129.16": metadata, "192.0.0.192": metadata, "224.0.0.1": "a multicast address",
		"ff02::1": "a multicast address", "255.255.255.255": "a reserved or broadcast address",
		"192.0.2.1": documentation, "198.18.0.1": "a benchmarking address", "fec0::1": "a site-local address",
		"64:ff9b::a00:1": private, "64:ff9b:1::a00:1": embeds, "2002:a00:1::1": embeds, "::10.0.0.1": embeds,
		"4000::1": "an unassigned address",
	} {
		d := ask("m.example", a, 443)
		addr := netip.MustParseAddr(a)
		if d.Verdict != Deny || d.Private || d.Fix != netip.AddrPortFrom(addr, 443).String() || Special(addr) != what ||
			d.Reason != "its address "+addr.String()+" is "+what+", which only a rule for the address allows" {
			t.Errorf("%s: %+v", a, d)
		}
	}
	if d := ask("m.example", "8.8.8.8", 443); d.Verdict != Allow || d.Private {
		t.Errorf("%+v", d)
	}
	n.Deny = []Rule{{Denies: true, Net: netip.MustParsePrefix("10.0.0.0/8")}}
	if d := ask("m.example", "10.0.0.1", 443); d.Verdict != Deny {
		t.Errorf("a deny rule for the address: %+v", d)
	}
}

// TestDecide_KeepsLimitsAtPrivateAddresses checks that a rule with private lifts no limit of another rule for the name.
func TestDecide_KeepsLimitsAtPrivateAddresses(t *testing.T) {
	t.Parallel()
	rule := func(text string, change func(r *Rule)) Rule {
		r, err := ParseRule(text, false)
		if err != nil {
			t.Fatal(err)
		}
		change(&r)
		return r
	}
	decide := func(other func(r *Rule), http *HTTPRequest) Decision {
		n := Network{Mode: NetRules,
			Allow: []Rule{rule("m.example:443,private", func(*Rule) {}), rule("m.example:443", other)}}
		return n.Decide(Request{Host: host(t, "m.example"), Addr: netip.MustParseAddr("10.0.0.1"), Port: 443,
			Protocol: TCP, HTTP: http})
	}
	d := decide(func(r *Rule) { r.MaxBytes = 10 }, nil)
	if d.Verdict != Allow || !d.Private || d.MaxBytes != 10 || len(d.Limited) != 1 {
		t.Errorf("max_bytes: %+v", d)
	}
	once := func(r *Rule) { r.MaxRequest = 10 }
	if d := decide(once, nil); d.Verdict != Inspect || !d.Private {
		t.Errorf("max_request: %+v", d)
	}
	if d := decide(once, &HTTPRequest{Method: "GET", Path: "/"}); d.Verdict != Allow || !d.Private || d.MaxRequest != 10 {
		t.Errorf("max_request, of a request: %+v", d)
	}
}

// TestDecide_NameRuleAllowsNoAddress checks that rules for names do not allow addresses, and rules for addresses no
// names.
func TestDecide_NameRuleAllowsNoAddress(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		bare := q.Host.IsZero()
		n.Allow = slices.DeleteFunc(slices.Clone(n.Allow), func(r Rule) bool { return r.Host.IsZero() == bare })
		if d := n.Decide(q); d.passes() {
			t.Fatalf("%s passes: %+v", q, d)
		}
	})
}

// TestDecide_RuleLiftsNoOtherLimit checks that the smallest limit applies, so that no rule lifts the limit of another.
func TestDecide_RuleLiftsNoOtherLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, q := networks().Draw(t, "network"), requests().Draw(t, "request")
		before := n.Decide(q)
		n.Allow = append(slices.Clone(n.Allow), rules(false).Draw(t, "extra"))
		after := n.Decide(q)
		if before.Verdict != Allow || after.Verdict == Inspect {
			return
		}
		if after.Verdict != Allow || least(before.MaxBytes, after.MaxBytes) != after.MaxBytes ||
			least(before.MaxRequest, after.MaxRequest) != after.MaxRequest || after.Rate.Compare(before.Rate) > 0 {
			t.Fatalf("%s: %+v, then %+v", q, before, after)
		}
	})
}

func TestDecide_SmallestLimitHolds(t *testing.T) {
	t.Parallel()
	n := Network{Mode: NetRules, Allow: []Rule{
		{Host: pattern("*.example"), MaxBytes: 5, MaxRequest: 2, Rate: Rate{2, time.Minute}},
		{Host: pattern("a.example"), MaxBytes: 3, MaxRequest: 7, Rate: Rate{1, time.Second}},
		{Host: pattern("a.example")},
		{Host: pattern("b.example"), MaxBytes: 1},
	}}
	for i := range n.Allow {
		if err := n.Allow[i].settle(); err != nil {
			t.Fatal(err)
		}
	}
	d := n.Decide(Request{Host: host(t, "a.example"), Port: 443, Protocol: TCP, HTTP: &HTTPRequest{"GET", "/", ""}})
	if d.Verdict != Allow || d.MaxBytes != 3 || d.MaxRequest != 2 || d.Rate != (Rate{2, time.Minute}) {
		t.Errorf("%+v", d)
	}
}

func TestDecide_Examples(t *testing.T) {
	t.Parallel()
	get := func(path, query string) *HTTPRequest { return &HTTPRequest{"GET", path, query} }
	for _, c := range []struct {
		about       string
		allow, deny string // rules, separated by spaces
		more        []Rule
		to, addr    string
		http        *HTTPRequest
		want        Verdict
		reason      string
	}{
		{about: "a name, before it is resolved", allow: "example.com", to: "example.com", want: Allow},
		{about: "a name at a public address", allow: "example.com", to: "example.com", addr: "93.184.215.14", want: Allow},
		{about: "another port", allow: "example.com", to: "example.com:80", want: Deny, reason: "no rule names it"},
		{about: "another protocol", allow: "example.com", to: "udp://example.com:443", want: Deny},
		{about: "a name rebound to this machine", allow: "example.com", to: "example.com", addr: "127.0.0.1", want: Deny,
			reason: "a loopback address"},
		{about: "a name rebound to metadata", allow: "example.com 169.254.0.0/16:443", to: "example.com",
			addr: "169.254.169.254", want: Deny, reason: "metadata"},
		{about: "a name of a private address that is named", allow: "db.internal:5432 10.0.0.0/8:5432",
			to: "db.internal:5432", addr: "10.1.2.3", want: Allow},
		{about: "at another port", allow: "db.internal:5432,443 10.0.0.0/8:443", to: "db.internal:5432",
			addr: "10.1.2.3", want: Deny},
		{about: "a private address in a wider range", allow: "0.0.0.0/0:443", to: "10.1.2.3", want: Deny,
			reason: "a private address"},
		{about: "a private address in a range that begins with it", allow: "10.0.0.0/7:443 10.0.0.0/8:80", to: "10.1.2.3",
			want: Deny, reason: "a private address"},
		{about: "a public one in it", allow: "0.0.0.0/0:443", to: "8.8.8.8", want: Allow},
		{about: "everything of IPv6 is not its private part", allow: "[::/0]:443", to: "[fd00::1]", want: Deny},
		{about: "nor what nobody has yet", allow: "[::/0]:443", to: "[4000::1]", want: Deny, reason: "an unassigned address"},
		{about: "nor a mapped address", allow: "[::/0]:443", to: "8.8.8.8", addr: "::ffff:8.8.8.8", want: Deny,
			reason: "no rule names it"},
		{about: "a mapped address is IPv4", allow: "8.8.8.8:443", to: "8.8.8.8", addr: "::ffff:8.8.8.8", want: Allow},
		{about: "a mapped private address", allow: "example.com", to: "example.com", addr: "::ffff:10.0.0.1", want: Deny,
			reason: "a private address"},
		{about: "a private address behind NAT64", allow: "[64:ff9b::/96]:443", to: "[64:ff9b::a00:1]", want: Deny,
			reason: "a private address"},
		{about: "a public one behind NAT64", allow: "example.com", to: "example.com", addr: "64:ff9b::8.8.8.8", want: Allow},
		{about: "6to4", allow: "example.com", to: "example.com", addr: "2002:0808:0808::1", want: Deny},
		{about: "a zone", allow: "example.com", to: "example.com", addr: "fe80::1%eth0", want: Deny,
			reason: "a link-local address"},
		{about: "an address that is denied, in another form", allow: "example.com", deny: "8.8.8.0/24", to: "example.com",
			addr: "64:ff9b::8.8.8.8", want: Deny, reason: "a rule denies it"},
		{about: "a name below one that is denied", allow: "*.example.com", deny: "*.bad.example.com", to: "a.bad.example.com",
			want: Deny, reason: "a rule denies it"},
		{about: "a rule that denies is for every port and protocol", allow: "udp://a.example:53", deny: "a.example",
			to: "udp://a.example:53", want: Deny},
		{about: "a suffix is not below itself", allow: "*.example.com", to: "example.com", want: Deny},
		{about: "methods need a look", more: []Rule{{Host: pattern("a.example"), Methods: []string{"GET"}}}, to: "a.example",
			want: Inspect},
		{about: "a method that is allowed", more: []Rule{{Host: pattern("a.example"), Methods: []string{"GET"}}},
			to: "a.example", http: get("/", ""), want: Allow},
		{about: "a method is not its small letters", more: []Rule{{Host: pattern("a.example"), Methods: []string{"GET"}}},
			to: "a.example", http: &HTTPRequest{"get", "/", ""}, want: Deny, reason: "not this request"},
		{about: "a path below", more: []Rule{{Host: pattern("a.example"), Paths: []string{"/v1/*"}}}, to: "a.example",
			http: get("/v1/x", "y"), want: Allow},
		{about: "a path that climbs", more: []Rule{{Host: pattern("a.example"), Paths: []string{"/v1/*"}}}, to: "a.example",
			http: get("/v1/../x", ""), want: Deny, reason: "ambiguous"},
		{about: "no query at all", more: []Rule{{Host: pattern("a.example"), Query: map[string]string{}}}, to: "a.example",
			http: get("/", "x=1"), want: Deny},
		{about: "a query of its keys and values",
			more: []Rule{{Host: pattern("a.example"), Query: map[string]string{"k": "v w", "any": "*"}}}, to: "a.example",
			http: get("/", "any=%31&k=v+w"), want: Allow},
		{about: "a key twice", more: []Rule{{Host: pattern("a.example"), Query: map[string]string{"k": "*"}}},
			to: "a.example", http: get("/", "k=a&%6b=b"), want: Deny},
		{about: "another value", more: []Rule{{Host: pattern("a.example"), Query: map[string]string{"k": "v"}}},
			to: "a.example", http: get("/", "k=w"), want: Deny},
		{about: "another key", more: []Rule{{Host: pattern("a.example"), Query: map[string]string{"k": "v"}}},
			to: "a.example", http: get("/", "k=v&K=v"), want: Deny},
		{about: "a query that some read otherwise",
			more: []Rule{{Host: pattern("a.example"), Query: map[string]string{"k": "*"}}}, to: "a.example",
			http: get("/", "k=v;j=x"), want: Deny},
		{about: "a path that is denied, in capitals", allow: "a.example",
			more: []Rule{{Denies: true, Host: pattern("a.example"), Paths: []string{"/admin/*"}}}, to: "a.example",
			http: get("/ADMIN", ""), want: Deny, reason: "a rule denies it"},
		{about: "a path that may be the one that is denied", allow: "a.example",
			more: []Rule{{Denies: true, Host: pattern("a.example"), Paths: []string{"/admin"}}}, to: "a.example",
			http: get("/x/%2e%2e/admin", ""), want: Deny},
		{about: "a connection that may be denied needs a look", allow: "a.example",
			more: []Rule{{Denies: true, Host: pattern("a.example"), Methods: []string{"POST"}}}, to: "a.example", want: Inspect},
		{about: "a limit on some requests holds beside a rule for all", allow: "a.example",
			more: []Rule{{Host: pattern("a.example"), Methods: []string{"POST"}, MaxBytes: 1}}, to: "a.example", want: Inspect},
		{about: "conditions without a limit do not", allow: "a.example",
			more: []Rule{{Host: pattern("a.example"), Methods: []string{"POST"}}}, to: "a.example", want: Allow},
		{about: "a tunnel", allow: "a.example", to: "a.example", http: &HTTPRequest{"CONNECT", "/", ""}, want: Deny,
			reason: "tunnel"},
	} {
		n := Network{Mode: NetRules}
		for _, list := range []struct {
			text string
			to   *[]Rule
		}{{c.allow, &n.Allow}, {c.deny, &n.Deny}} {
			for _, s := range strings.Fields(list.text) {
				r, err := ParseRule(s, list.to == &n.Deny)
				if err != nil {
					t.Fatal(err)
				}
				*list.to = append(*list.to, r)
			}
		}
		for _, r := range c.more {
			if err := r.settle(); err != nil {
				t.Fatal(err)
			}
			if r.Denies {
				n.Deny = append(n.Deny, r)
			} else {
				n.Allow = append(n.Allow, r)
			}
		}
		q, err := ParseRequest(c.to)
		if err != nil {
			t.Fatal(err)
		}
		if c.addr != "" {
			q.Addr = netip.MustParseAddr(c.addr)
		}
		q.HTTP = c.http
		d := n.Decide(q)
		if d.Verdict != c.want || !strings.Contains(d.Reason, c.reason) || d.Reason == "" {
			t.Errorf("%s: %s at %s: %+v; want %s, %q", c.about, q, q.Addr, d, c.want, c.reason)
		}
	}
}

func pattern(s string) Pattern {
	p, err := ParsePattern(s)
	if err != nil {
		return Pattern{}
	}
	return p
}

// TestDenialHint_IsAllowRule checks that the hint of a denial is a rule that allows the request.
func TestDenialHint_IsAllowRule(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"example.com", "example.com:80", "10.1.2.3:5432", "udp://[::1]:53", "127.0.0.1",
		"169.254.169.254:80"} {
		q, err := ParseRequest(to)
		if err != nil {
			t.Fatal(err)
		}
		d := Network{Mode: NetRules}.Decide(q)
		_, text, ok := strings.Cut(d.Hint, `network: {allow: ["`)
		r, err := ParseRule(strings.TrimSuffix(text, `"]}`), false)
		if !ok || err != nil {
			t.Fatalf("%s: hint %q, %v", to, d.Hint, err)
		}
		if d := (Network{Mode: NetRules, Allow: []Rule{r}}).Decide(q); d.Verdict != Allow {
			t.Errorf("%s is not allowed by %s: %+v", to, r, d)
		}
	}
}

func TestParseRequest_RefusesSeveralDestinations(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", "*.example.com", "10.0.0.0/8:80", "example.com:80,81", "example.com:80-81",
		"example.com:", "https://example.com/", "example.com/x", "[::1]80", "::ffff:10.0.0.1", "127.1"} {
		if q, err := ParseRequest(in); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, %v", in, q, err)
		}
	}
}

func TestNetwork_ZeroValueDeniesAll(t *testing.T) {
	t.Parallel()
	if d := (Network{}).Decide(Request{Host: host(t, "a.example"), Port: 443, Protocol: TCP}); d.Verdict != Deny {
		t.Errorf("%+v", d)
	}
	half := Rule{Host: pattern("a.example")}
	if d := (Network{Mode: NetRules, Allow: []Rule{half}}).
		Decide(Request{Host: host(t, "a.example"), Port: 443, Protocol: TCP}); d.Verdict != Deny {
		t.Errorf("an incomplete rule: %+v", d)
	}
	if d := (Network{Mode: NetHost}).Decide(Request{}); d.Verdict != Deny {
		t.Errorf("the zero request: %+v", d)
	}
}

func FuzzDecide(f *testing.F) {
	f.Add("example.com", "GET", "/a", "k=v", "/a/*")
	f.Add("10.0.0.1:80", "", "/%2e", "%", "/a")
	f.Fuzz(func(t *testing.T, to, method, path, query, rule string) {
		q, err := ParseRequest(to)
		if err != nil {
			return
		}
		r := Rule{Host: Pattern{host: q.Host}, Ports: []Ports{{1, 65535}}, Protocol: q.Protocol,
			Query: map[string]string{"k": "v"}}
		if p, err := parsePath(rule); err == nil {
			r.Paths = []string{p}
		}
		q.HTTP = &HTTPRequest{method, path, query}
		d := Network{Mode: NetRules, Allow: []Rule{r}}.Decide(q)
		if d.Verdict == Allow &&
			(query != "" && query != "k=v" && !strings.ContainsAny(query, "%") || r.Paths != nil &&
				strings.Contains(path, "/..")) {
			t.Fatalf("%s %+v passes by %s", q, q.HTTP, r)
		}
	})
}

// TestDecide_Ask checks that only public destinations that no allow or deny rule covers are asked about.
func TestDecide_Ask(t *testing.T) {
	t.Parallel()
	p, err := Merge(layer(t, Flags, `network:
  ask: true
  allow: ["a.example", {host: b.example, methods: [GET], paths: [/x]}, "10.0.0.0/8:5432"]
  deny: [c.example, "*.d.example", "udp://e.example", 93.184.216.0/24, {host: f.example, methods: [POST]}]`))
	if err != nil {
		t.Fatal(told(err))
	}
	http := func(place, method string) Request {
		q := request(t, place)
		q.HTTP = &HTTPRequest{Method: method, Path: "/x"}
		return q
	}
	pub, priv := netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("192.168.1.1")
	at := func(place string, a netip.Addr) Request {
		q := request(t, place)
		q.Addr = a
		return q
	}
	for _, c := range []struct {
		q    Request
		want Verdict
	}{
		{request(t, "a.example"), Allow}, {request(t, "a.example:80"), Ask}, {request(t, "udp://a.example:443"), Ask},
		{request(t, "x.a.example"), Ask},
		{request(t, "b.example"), Inspect}, {http("b.example", "GET"), Allow}, {http("b.example", "POST"), Deny},
		{request(t, "b.example:80"), Ask},
		{request(t, "c.example"), Deny}, {request(t, "c.example:80"), Deny}, {request(t, "x.d.example"), Deny},
		{request(t, "d.example"), Ask},
		{request(t, "udp://e.example:53"), Deny}, {request(t, "e.example"), Ask},
		{request(t, "f.example"), Ask}, {http("f.example", "POST"), Deny}, {http("f.example", "GET"), Ask},
		{http("g.example", "CONNECT"), Deny},
		{request(t, "1.1.1.1:443"), Ask}, {request(t, "[2606:4700:4700::1111]:443"), Ask},
		{request(t, "93.184.216.34:443"), Deny},
		{at("g.example", pub), Ask}, {at("g.example", priv), Deny},
		{at("g.example", netip.MustParseAddr("169.254.169.254")), Deny},
		{at("g.example", netip.MustParseAddr("93.184.216.34")), Deny},
		{at("g.example", netip.MustParseAddr("::ffff:10.0.0.1")), Deny},
		{request(t, "192.168.1.1:443"), Deny}, {request(t, "169.254.169.254:80"), Deny}, {request(t, "127.0.0.1:80"), Deny},
		{request(t, "10.1.1.1:5432"), Allow},
		{request(t, "10.1.1.1:22"), Deny}, {request(t, "[fd00:ec2::254]:80"), Deny},
		{request(t, "[64:ff9b::a00:1]:80"), Deny},
		{request(t, "localhost"), Deny}, {request(t, "wpad"), Deny}, {request(t, "printer.local"), Deny},
		{request(t, "metadata.google.internal:80"), Deny},
		{request(t, "1.1.1.1.in-addr.arpa"), Deny}, {request(t, "x.onion"), Deny},
		{request(t, "_https._tcp.new.example"), Deny}, {request(t, "a._x.new.example"), Deny},
		{request(t, "local.example"), Ask},
	} {
		if d := p.Network.Decide(c.q); d.Verdict != c.want || d.Verdict == Ask && (d.Rule != nil || d.Hint == "") {
			t.Errorf("%s: %+v, want %s", c.q, d, c.want)
		}
	}
	p.Network.Ask = false
	if d := p.Network.Decide(request(t, "new.example")); d.Verdict != Deny {
		t.Errorf("asking is off, but got %+v", d)
	}
}

func request(t *testing.T, place string) Request {
	t.Helper()
	q, err := ParseRequest(place)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
