//go:build linux && (amd64 || arm64)

package gate

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/policy"
)

// asking is a sandbox whose policy asks about what it does not name.
type asking struct {
	*sandbox
	network policy.Network

	mu     sync.Mutex
	offset time.Duration // guarded by mu; how far the gate's clock is ahead
}

func startAsking(t *testing.T, k kind, b *book, change func(*Options)) *asking {
	t.Helper()
	a := &asking{network: policy.Network{Mode: policy.NetRules, Ask: true}}
	a.sandbox = start(t, k, b, func(o *Options) {
		o.Policy = Rules(a.network)
		o.Now = func() time.Time {
			a.mu.Lock()
			defer a.mu.Unlock()
			return time.Now().Add(a.offset)
		}
		if change != nil {
			change(o)
		}
	})
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, link.Resolvers(true), 0o644); err != nil {
		t.Fatal(err)
	}
	a.must(t, "mount", nil, conf, "/etc/resolv.conf")
	return a
}

// say adds allow and deny rules.
func (a *asking) say(t *testing.T, allow, deny string) {
	t.Helper()
	more := network(t, allow, deny)
	a.network.Allow, a.network.Deny = append(slices.Clone(a.network.Allow), more.Allow...),
		append(slices.Clone(a.network.Deny), more.Deny...)
	a.SetPolicy(Rules(a.network))
}

func (a *asking) pass(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offset += d
}

// asked waits for the pending request of a destination.
func (a *asking) asked(t *testing.T, proto Proto, host string, port uint16) Event {
	t.Helper()
	return a.wait(t, "a question", func(e Event) bool {
		return e.Kind == KindAsk && e.Verdict == Ask && e.Proto == proto &&
			(e.Name == host || e.Name == "" && e.Addr.String() == host) && e.Port == port
	})
}

// later starts an order that waits for a decision, and returns a function that waits for its result.
func (a *asking) later(what string, data []byte, args ...string) func() ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	c := make(chan result, 1)
	go func() {
		out, err := a.do(what, data, args...)
		c <- result{out, err}
	}()
	return func() ([]byte, error) {
		r := <-c
		return r.out, r.err
	}
}

func echoServer(t *testing.T) string {
	return listen(t, func(c net.Conn) {
		b := make([]byte, 100)
		if n, err := c.Read(b); err == nil {
			c.Write(b[:n])
		}
	})
}

// TestPendingRequest_HoldsLookupAndConnection checks that a name without a rule is not looked up
// outside before a person approves it. Then the waiting query is answered, and the connection passes.
func TestPendingRequest_HoldsLookupAndConnection(t *testing.T) {
	overBoth(t, testPendingRequestHoldsLookupAndConnection)
}

func testPendingRequestHoldsLookupAndConnection(t *testing.T, k kind) {
	t.Parallel()
	pub, bare := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.99")
	b := &book{names: map[string][]netip.Addr{"new.example": {pub}, "rebind.example": addrs("10.0.0.1")}, ttl: time.Minute}
	at := echoServer(t)
	b.hosts = map[netip.AddrPort]string{netip.AddrPortFrom(pub, 80): at, netip.AddrPortFrom(pub, 8080): at,
		netip.AddrPortFrom(bare, 22): at}
	s := startAsking(t, k, b, nil)

	done := s.later("exchange", []byte("hello"), "tcp", "new.example:80")
	e := s.asked(t, DNS, "new.example", 0)
	if e.Reason != "no rule names it" || e.Hint == "" || !e.Until.After(e.Time) {
		t.Errorf("%+v", e)
	}
	if q := s.Stats().Asking; len(q) != 1 || q[0].Name != "new.example" || q[0].Waiting < 1 || q[0].Until != e.Until {
		t.Errorf("%+v", q)
	}
	s.say(t, "other.example", "")
	if q := s.Stats().Asking; len(q) != 1 || len(b.sought()) != 0 {
		t.Errorf("a rule for another name let it pass: %+v, %q", q, b.sought())
	}
	s.say(t, "new.example:80", "")
	if out, err := done(); err != nil || string(out) != "hello" {
		t.Fatalf("%q, %v", out, err)
	}
	end := s.wait(t, "the answer",
		func(e Event) bool { return e.Kind == KindAsk && e.Verdict == Allow && e.Name == "new.example" })
	if !strings.HasPrefix(end.Rule, "new.example:80 ") || len(s.Stats().Asking) != 0 {
		t.Errorf("%+v", end)
	}

	// Another port of the name is another request: the handshake waits, and nothing is dialled.
	done = s.later("exchange", []byte("again"), "tcp", "new.example:8080")
	s.asked(t, TCP, "new.example", 8080)
	if slices.Contains(b.reached(), netip.AddrPortFrom(pub, 8080)) {
		t.Error("it was dialled before it was approved")
	}
	s.say(t, "new.example:8080", "")
	if out, err := done(); err != nil || string(out) != "again" {
		t.Errorf("%q, %v", out, err)
	}

	// An address without a name.
	done = s.later("exchange", []byte("ssh"), "tcp", "93.184.216.99:22")
	if e := s.asked(t, TCP, "93.184.216.99", 22); e.Name != "" {
		t.Errorf("%+v", e)
	}
	s.say(t, "93.184.216.99:22", "")
	if out, err := done(); err != nil || string(out) != "ssh" {
		t.Errorf("%q, %v", out, err)
	}

	// Approval of a name does not approve the address that it resolves to.
	done = s.later("look", nil, "rebind.example")
	s.asked(t, DNS, "rebind.example", 0)
	s.say(t, "rebind.example", "")
	if out, err := done(); err == nil {
		t.Errorf("%s", out)
	}
	s.denied(t, DNS, "the name leads to a private address")

	// The same over TCP, and denied.
	m := ask("no.example", dnsmessage.TypeA, false)
	done = s.later("ask", m, "tcp", "192.0.0.1:53")
	s.asked(t, DNS, "no.example", 0)
	s.say(t, "", "no.example")
	if out, err := done(); err != nil || unpack(t, m, out).RCode != dnsmessage.RCodeNameError {
		t.Errorf("% x, %v", out, err)
	}
	if e := s.denied(t, DNS, "a rule denies it"); e.Name != "no.example" || e.Verdict != Deny {
		t.Errorf("%+v", e)
	}
	s.must(t, "ask", m, "udp", "192.0.0.1:53") // denied meanwhile: the query does not wait

	// Queries for other types than addresses are not asked about, and return nothing.
	for _, typ := range []dnsmessage.Type{65, 16, 15, 255} {
		m := ask("typed.example", typ, false)
		if x := unpack(t, m, s.must(t, "ask", m, "udp", "192.0.0.1:53")); x.RCode != dnsmessage.RCodeSuccess ||
			len(x.addrs) != 0 {
			t.Errorf("%d: %+v", typ, x)
		}
	}
	s.denied(t, DNS, "approval is requested on a connection to its addresses")

	// Addresses that are denied without rules are still denied, at once.
	for _, to := range []string{"10.0.0.1:80", "169.254.169.254:80", "127.0.0.53:53", "192.0.0.1:80", "[fd00:ec2::254]:80",
		"[64:ff9b::a00:1]:80"} {
		if _, err := s.do("exchange", []byte("x"), "tcp", to, "none"); err == nil {
			t.Errorf("%s was reached", to)
		}
	}
	for _, n := range []string{"localhost", "wpad", "x.internal", "1.0.0.127.in-addr.arpa", "a\x1b[2Jb.example", "127.1"} {
		if m := ask(n, dnsmessage.TypeA, false); unpack(t, m, s.must(t, "ask", m, "udp", "192.0.0.1:53")).
			RCode == dnsmessage.RCodeSuccess {
			t.Errorf("%q was answered", n)
		}
	}
	if _, err := s.do("ping", nil, "1.1.1.1"); err == nil {
		t.Error("an echo was answered")
	}
	if q := s.Stats().Asking; len(q) != 0 {
		t.Errorf("approval is requested: %+v", q)
	}
}

// TestPendingRequest_TimesOut checks that a request is denied if it is not answered in time, and that the next attempt
// makes another request.
func TestPendingRequest_TimesOut(t *testing.T) { overBoth(t, testPendingRequestTimesOut) }

func testPendingRequestTimesOut(t *testing.T, k kind) {
	t.Parallel()
	b := &book{names: map[string][]netip.Addr{}, ttl: time.Minute}
	s := startAsking(t, k, b, nil)
	for range 2 {
		m := ask("late.example", dnsmessage.TypeA, false)
		done := s.later("ask", m, "udp", "192.0.0.1:53")
		s.asked(t, DNS, "late.example", 0)
		for len(s.Stats().Asking) == 0 {
			time.Sleep(time.Millisecond) // the second question
		}
		s.pass(56 * time.Second)
		if out, err := done(); err != nil || unpack(t, m, out).RCode != dnsmessage.RCodeNameError {
			t.Errorf("% x, %v", out, err)
		}
	}
	s.denied(t, DNS, "not approved within 55s")
	done := s.later("exchange", []byte("x"), "tcp", "93.184.216.34:443")
	s.asked(t, TCP, "93.184.216.34", 443)
	s.pass(56 * time.Second)
	if _, err := done(); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	s.denied(t, TCP, "not approved within 55s")
	if len(b.sought()) != 0 || len(b.reached()) != 0 {
		t.Errorf("%q, %v", b.sought(), b.reached())
	}
}

// TestPendingRequest_DropsDatagrams checks that datagrams are dropped while their request is pending, and that later
// datagrams pass after approval.
func TestPendingRequest_DropsDatagrams(t *testing.T) { overBoth(t, testPendingRequestDropsDatagrams) }

func testPendingRequestDropsDatagrams(t *testing.T, k kind) {
	t.Parallel()
	echo := echoDatagrams(t)
	pub := netip.MustParseAddr("93.184.216.34")
	b := &book{hosts: map[netip.AddrPort]string{netip.AddrPortFrom(pub, 123): echo}}
	s := startAsking(t, k, b, nil)
	if _, err := s.do("ask", []byte("x"), "udp", "93.184.216.34:123", "none"); err == nil ||
		strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	s.asked(t, UDP, "93.184.216.34", 123)
	s.say(t, "udp://93.184.216.34:123", "")
	if got := s.must(t, "ask", []byte("time"), "udp", "93.184.216.34:123"); string(got) != "time" {
		t.Errorf("%q", got)
	}
}

// TestPendingRequests_FloodIsBounded sends a flood of requests, as a tunnel that encodes data in names does. Some wait
// and the others are denied; allowed requests are answered meanwhile.
func TestPendingRequests_FloodIsBounded(t *testing.T) { overBoth(t, testPendingRequestsFloodIsBounded) }

func testPendingRequestsFloodIsBounded(t *testing.T, k kind) {
	t.Parallel()
	pub := netip.MustParseAddr("93.184.216.34")
	b := &book{names: map[string][]netip.Addr{"good.example": {pub}},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(pub, 80): echoServer(t)}, ttl: time.Minute}
	s := startAsking(t, k, b, nil)
	s.say(t, "good.example:80", "")
	for i := range 300 {
		s.must(t, "begin", ask(fmt.Sprintf("%x.secret.evil.example", i), dnsmessage.TypeA, false), "192.0.0.1:53")
	}
	for range 200 {
		s.must(t, "begin", ask("same.evil.example", dnsmessage.TypeA, false), "[fdc0:71ce:9a7e::1]:53")
	}
	for i := range 150 {
		s.must(t, "begin", nil, fmt.Sprintf("93.184.217.%d:443", i))
	}
	s.denied(t, DNS, "too many requests are pending approval")
	s.denied(t, TCP, "too many requests are pending approval")
	q, waiting := s.Stats().Asking, 0
	for _, x := range q {
		waiting += x.Waiting
	}
	if len(q) != 16 || waiting > 64 || len(s.desk.open) > 16 {
		t.Errorf("%d questions, %d held", len(q), waiting)
	}
	if out, err := s.do("exchange", []byte("hello"), "tcp", "good.example:80"); err != nil || string(out) != "hello" {
		t.Errorf("%q, %v", out, err)
	}
	for _, n := range b.sought() {
		if n != "good.example" {
			t.Errorf("%q was looked up outside", n)
		}
	}
	// The gate is closed while all of them wait.
}
