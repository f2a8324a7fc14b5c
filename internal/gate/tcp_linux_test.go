//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

func echo(c net.Conn) {
	io.Copy(c, c)
	c.(*net.TCPConn).CloseWrite()
}

func TestTCP_ReachesAllowedNames(t *testing.T) { overBoth(t, testTCPReachesAllowedNames) }

func testTCPReachesAllowedNames(t *testing.T, k kind) {
	t.Parallel()
	host := netip.MustParseAddr("93.184.216.34")
	host6 := netip.MustParseAddr("2606:2800:220:1::1")
	at := listen(t, echo)
	b := &book{
		decide: allowNames("a.example:80", "six.example:80"),
		names:  map[string][]netip.Addr{"a.example": {host}, "six.example": {host6}},
		hosts:  map[netip.AddrPort]string{netip.AddrPortFrom(host, 80): at, netip.AddrPortFrom(host6, 80): at},
		ttl:    time.Minute,
	}
	s := start(t, k, b, nil)
	big := bytes.Repeat([]byte("coppice "), 1<<19)
	for _, x := range []string{"a.example:80", "A.Example.:80", "six.example:80", "93.184.216.34:80"} {
		if got := s.must(t, "exchange", []byte("hello "+x), "tcp", x); string(got) != "hello "+x {
			t.Errorf("%s: %q", x, got)
		}
	}
	if got := s.must(t, "exchange", big, "tcp", "a.example:80"); !bytes.Equal(got, big) {
		t.Errorf("%d bytes of %d returned, or others", len(got), len(big))
	}
	e := s.wait(t, "the end", func(e Event) bool { return e.Kind == KindEnd && e.In == int64(len(big)) })
	if e.Out != int64(len(big)) || e.Name != "a.example" || e.Addr != host || e.Port != 80 || e.Rule != "a.example:80" ||
		e.Reason != "" {
		t.Errorf("%+v", e)
	}
	for _, x := range []string{"a.example:81", "93.184.216.34:443", "1.1.1.1:80", "[2606:4700::1]:80", "192.0.0.1:80",
		"10.0.0.1:80", "169.254.169.254:80"} {
		if got, err := s.do("exchange", nil, "tcp", x); err == nil {
			t.Errorf("%s was reached: %q", x, got)
		}
	}
	if all := b.reached(); len(all) != 5 {
		t.Errorf("%v were dialled", all)
	}
}

func TestPolicyChange_EndsDeniedConnections(t *testing.T) {
	overBoth(t, testPolicyChangeEndsDeniedConnections)
}

func testPolicyChangeEndsDeniedConnections(t *testing.T, k kind) {
	t.Parallel()
	a, c := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.35")
	at := listen(t, echo)
	b := &book{
		decide: allowNames("a.example:80", "c.example:80"),
		names:  map[string][]netip.Addr{"a.example": {a}, "c.example": {c}},
		hosts:  map[netip.AddrPort]string{netip.AddrPortFrom(a, 80): at, netip.AddrPortFrom(c, 80): at},
		ttl:    time.Minute,
	}
	c0 := &clock{now: time.Now()}
	s := start(t, k, b, func(o *Options) { o.Now, o.Bounds.Idle = c0.Now, 100*time.Hour })
	s.must(t, "hold", []byte("x"), "a.example:80")
	s.must(t, "hold", []byte("x"), "c.example:80")
	c0.pass(24 * time.Hour) // a connection outlives the pin of its name
	s.SetPolicy(policyFunc(allowNames("c.example:80")))
	s.must(t, "ended", nil, "0")
	s.wait(t, "the cut", func(e Event) bool {
		return e.Kind == KindEnd && e.Name == "a.example" && e.Reason == "the policy was changed"
	})
	if _, err := s.do("exchange", nil, "tcp", "a.example:80"); err == nil {
		t.Error("the old policy is still in force")
	}
	if _, err := s.do("exchange", nil, "tcp", "93.184.216.35:80"); err == nil {
		t.Error("the pin has not expired")
	}
	if st := s.Stats(); st.Conns != 1 {
		t.Errorf("%+v", st)
	}
	s.SetPolicy(nil)
	s.must(t, "ended", nil, "1")
	if _, err := s.do("exchange", nil, "tcp", "93.184.216.35:80"); err == nil {
		t.Error("a gate without a policy allows connections")
	}
	s.SetPolicy(b)
	if got := s.must(t, "exchange", []byte("again"), "tcp", "a.example:80"); string(got) != "again" {
		t.Errorf("%q", got)
	}
}

// policyFunc is a policy implemented by a function.
type policyFunc func(Request) Decision

func (f policyFunc) Decide(r Request) Decision { return f(r) }

func TestTCP_BoundsConnectionsAndBytes(t *testing.T) { overBoth(t, testTCPBoundsConnectionsAndBytes) }

func testTCPBoundsConnectionsAndBytes(t *testing.T, k kind) {
	t.Parallel()
	a := netip.MustParseAddr("93.184.216.34")
	b := &book{
		decide: func(r Request) Decision {
			d := Decision{Verdict: Allow, Rule: "r"}
			if r.Port == 81 {
				d.Limits, d.Rule = []Limit{{Rule: "small", MaxBytes: 1000}}, "small"
			}
			return d
		},
		names: map[string][]netip.Addr{"a.example": {a}},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(a, 80): listen(t, echo),
			netip.AddrPortFrom(a, 81): listen(t, echo)},
		ttl: time.Minute,
	}
	s := start(t, k, b, func(o *Options) { o.Bounds = Bounds{Conns: 5, Idle: time.Second} })
	if got := s.must(t, "many", nil, "93.184.216.34:80", "8"); string(got) != "5" {
		t.Errorf("%s connections", got)
	}
	s.denied(t, TCP, "too many connections")
	s.wait(t, "an idle one", func(e Event) bool { return e.Kind == KindEnd && e.Reason == "idle for 1s" })
	s.must(t, "drop", nil)

	small := start(t, k, b, nil)
	if got := small.must(t, "exchange", make([]byte, 400), "tcp", "93.184.216.34:81"); len(got) != 400 {
		t.Errorf("%d bytes", len(got))
	}
	if got, err := small.do("exchange", make([]byte, 400), "tcp", "93.184.216.34:81"); err == nil && len(got) == 400 {
		t.Error("another 800 bytes pass although 800 of 1000 are spent")
	}
	small.wait(t, "the budget",
		func(e Event) bool { return e.Kind == KindEnd && e.Reason == "the byte limit of the rule is exhausted" })
	if got, err := small.do("exchange", make([]byte, 10), "tcp", "93.184.216.34:81"); err == nil && len(got) > 0 {
		t.Error("bytes pass although the byte limit of the rule is exhausted")
	}
	small.denied(t, TCP, "the byte limit of the rule is exhausted")
	if got := small.must(t, "exchange", make([]byte, 4000), "tcp", "93.184.216.34:80"); len(got) != 4000 {
		t.Errorf("another rule passed %d bytes", len(got))
	}
}

// TestByteBudget_IsPerRule checks that a budget belongs to its rule, whichever rule a connection is recorded with, and
// that open connections do not outlive a change of the budget.
func TestByteBudget_IsPerRule(t *testing.T) { overBoth(t, testByteBudgetIsPerRule) }

func testByteBudgetIsPerRule(t *testing.T, k kind) {
	t.Parallel()
	a, b := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.35")
	wide := httpRule(t, "*.example:81", func(r *policy.Rule) { r.MaxBytes = 1000 })
	n := policy.Network{Mode: policy.NetRules,
		Allow: []policy.Rule{httpRule(t, "a.example:80,81", nil), httpRule(t, "b.example:81", nil), wide}}
	h := &book{
		decide: Rules(n).Decide,
		names:  map[string][]netip.Addr{"a.example": {a}, "b.example": {b}},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(a, 80): listen(t, echo),
			netip.AddrPortFrom(a, 81): listen(t, echo), netip.AddrPortFrom(b, 81): listen(t, echo)},
		ttl: time.Minute,
	}
	s := start(t, k, h, nil)
	if got := s.must(t, "exchange", make([]byte, 400), "tcp", "a.example:81"); len(got) != 400 {
		t.Errorf("%d bytes", len(got))
	}
	if got, err := s.do("exchange", make([]byte, 400), "tcp", "b.example:81"); err == nil && len(got) == 400 {
		t.Error("another 800 bytes pass although 800 of 1000 are spent")
	}
	s.wait(t, "the budget",
		func(e Event) bool { return e.Kind == KindEnd && e.Reason == "the byte limit of the rule is exhausted" })

	s.must(t, "hold", []byte("x"), "a.example:80")
	n.Allow[0] = httpRule(t, "a.example:80,81", func(r *policy.Rule) { r.MaxBytes = 1 << 20 })
	s.SetPolicy(Rules(n))
	if got, err := s.do("rest", nil, "0"); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection continues without its limit: %q %v", got, err)
	}
	s.wait(t, "the end", func(e Event) bool { return e.Kind == KindEnd && e.Reason == "the policy was changed" })
}

// TestFullJournal_DeniesConnections checks that a connection that cannot be recorded is not made.
func TestFullJournal_DeniesConnections(t *testing.T) { overBoth(t, testFullJournalDeniesConnections) }

func testFullJournalDeniesConnections(t *testing.T, k kind) {
	t.Parallel()
	a := netip.MustParseAddr("93.184.216.34")
	b := &book{
		decide: func(Request) Decision { return Decision{Verdict: Allow} },
		names:  map[string][]netip.Addr{"a.example": {a}},
		hosts:  map[netip.AddrPort]string{netip.AddrPortFrom(a, 80): listen(t, echo)},
		ttl:    time.Minute,
	}
	block := make(chan struct{})
	s := start(t, k, b, func(o *Options) { o.Report = func(Event) { <-block } })
	defer close(block)
	s.must(t, "exchange", []byte("x"), "tcp", "93.184.216.34:80")
	for s.journal.emit(Event{}) {
	}
	if got, err := s.do("exchange", []byte("x"), "tcp", "93.184.216.34:80"); err == nil {
		t.Errorf("%q", got)
	}
	if all := b.reached(); len(all) != 1 || s.Stats().EventsLost == 0 {
		t.Errorf("%v were dialled, %+v", all, s.Stats())
	}
}

// TestHalfClose checks that the end of one direction is forwarded, and leaves the other open.
func TestHalfClose(t *testing.T) { overBoth(t, testHalfClose) }

func testHalfClose(t *testing.T, k kind) {
	t.Parallel()
	a := netip.MustParseAddr("93.184.216.34")
	b := &book{
		decide: func(Request) Decision { return Decision{Verdict: Allow} },
		names:  map[string][]netip.Addr{},
		hosts: map[netip.AddrPort]string{
			netip.AddrPortFrom(a, 80): listen(t, func(c net.Conn) { // answers after EOF
				n, _ := io.Copy(io.Discard, c)
				c.Write(bytes.Repeat([]byte{'x'}, int(n)))
			}),
			netip.AddrPortFrom(a, 81): listen(t, func(c net.Conn) { // closes first
				c.Write([]byte("bye"))
				c.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, c)
			}),
			netip.AddrPortFrom(a, 82): listen(t, func(c net.Conn) { // resets
				c.(*net.TCPConn).SetLinger(0)
			}),
		},
	}
	s := start(t, k, b, nil)
	if got := s.must(t, "exchange", make([]byte, 300000), "tcp", "93.184.216.34:80"); len(got) != 300000 {
		t.Errorf("%d bytes", len(got))
	}
	if got := s.must(t, "exchange", make([]byte, 300000), "tcp", "93.184.216.34:81"); string(got) != "bye" {
		t.Errorf("%q", got)
	}
	if e := s.wait(t, "the end", func(e Event) bool { return e.Kind == KindEnd && e.Port == 81 }); e.Out != 300000 ||
		e.In != 3 || e.Reason != "" {
		t.Errorf("%+v", e)
	}
	if got, err := s.do("exchange", make([]byte, 3<<20), "tcp", "93.184.216.34:82"); err == nil {
		t.Errorf("%q", got)
	}
	// A closed port is refused as it would be without a gate.
	if _, err := s.do("exchange", nil, "tcp", "93.184.216.34:83"); err == nil ||
		!bytes.Contains([]byte(err.Error()), []byte("connection refused")) {
		t.Errorf("%v", err)
	}
	s.wait(t, "who is not there",
		func(e Event) bool { return e.Kind == KindEnd && e.Reason == "not reached: connection refused" })
}
