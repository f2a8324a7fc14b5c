package gate

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// clerk is a desk with a clock and a policy. It collects the events that the desk reports.
type clerk struct {
	*desk
	wait func()

	mu     sync.Mutex
	events []Event
	clock  time.Time
	says   map[place]Decision // destinations that are not in it are Ask
}

func newClerk(b Bounds) *clerk {
	c := &clerk{clock: noon, says: map[place]Decision{}}
	j, wait := newJournal(c.now, func(e Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.events = append(c.events, e)
	})
	c.wait = wait
	c.desk = newDesk(j, c.now, b)
	return c
}

func (c *clerk) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock
}

func (c *clerk) say(p place, d Decision) {
	c.mu.Lock()
	c.says[p] = d
	c.mu.Unlock()
	c.reviewAll()
}

func (c *clerk) decide(p place) func() Decision {
	return func() Decision {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d, ok := c.says[p]; ok {
			return d
		}
		return Decision{Verdict: Ask, Reason: "no rule names it"}
	}
}

// told closes the journal and returns all events.
func (c *clerk) told() []Event {
	c.journal.close()
	c.wait()
	return c.events
}

func (c *clerk) pass(d time.Duration) {
	c.mu.Lock()
	c.clock = c.clock.Add(d)
	now := c.clock
	c.mu.Unlock()
	c.sweep(now)
}

func at(host string, port uint16) place { return place{proto: TCP, name: name(host), port: port} }

// waiting waits until all goroutines are blocked, and checks that n queries and connections are held.
func (c *clerk) waiting(t *testing.T, n int) {
	t.Helper()
	synctest.Wait()
	c.desk.mu.Lock()
	defer c.desk.mu.Unlock()
	if c.held != n {
		t.Fatalf("%d are held, want %d", c.held, n)
	}
}

func TestPendingRequest_IsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClerk(Bounds{Ask: time.Minute, Questions: 2, Waiting: 5})
		a, b := at("a.example", 443), at("b.example", 443)
		var wg sync.WaitGroup
		came := make(chan Decision, 5)
		for range 3 {
			wg.Go(func() { came <- c.hold(t.Context(), a, Decision{}, c.decide(a)) })
		}
		c.waiting(t, 3)
		c.pass(time.Second)
		wg.Go(func() { c.hold(t.Context(), b, Decision{}, c.decide(b)) })
		c.waiting(t, 4)
		q := c.questions()
		if len(q) != 2 || q[0].Name != "a.example" || q[0].Waiting != 3 || q[0].Until != noon.Add(time.Minute) ||
			q[1].Waiting != 1 || q[1].Since != noon.Add(time.Second) {
			t.Fatalf("%+v", q)
		}
		// A policy without a rule for it changes nothing.
		c.reviewAll()
		if len(c.questions()) != 2 {
			t.Fatal("a question was settled")
		}
		if d := c.hold(t.Context(), at("c.example", 443), Decision{Hint: "h"}, c.decide(a)); d.Verdict != Deny ||
			!strings.Contains(d.Reason, "too many requests are pending approval") || d.Hint != "h" {
			t.Errorf("%+v", d)
		}
		wg.Go(func() { came <- c.hold(t.Context(), a, Decision{}, c.decide(a)) })
		c.waiting(t, 5)
		if d := c.hold(t.Context(), a, Decision{}, c.decide(a)); d.Verdict != Deny ||
			!strings.Contains(d.Reason, "too many connections are waiting for approval") {
			t.Errorf("%+v", d)
		}
		c.say(a, Decision{Verdict: Inspect, Rule: "r"})
		for range 4 {
			if d := <-came; d.Verdict != Inspect || d.Rule != "r" {
				t.Errorf("%+v", d)
			}
		}
		c.pass(time.Minute)
		wg.Wait()
		if c.held != 0 || len(c.open) != 0 {
			t.Errorf("%d are held, of %d questions", c.held, len(c.open))
		}
		var said []string
		for _, e := range c.told() {
			said = append(said, fmt.Sprintf("%s %s:%d %s %s %s", e.Kind, e.Name, e.Port, e.Verdict, e.Rule, e.Reason))
			if (e.Verdict == Ask) != e.Until.Equal(e.Time.Add(time.Minute)) {
				t.Errorf("%+v", e)
			}
		}
		want := "ask a.example:443 ask  |ask b.example:443 ask  |ask a.example:443 allow r |ask b.example:443 deny  " +
			"not approved within 1m0s"
		if got := strings.Join(said, "|"); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestHold_EndsWithItsContext checks that a held connection is released when its client disconnects or the gate closes.
func TestHold_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClerk(Bounds{Ask: time.Minute, Questions: 1, Waiting: 1})
		a := at("a.example", 443)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan Decision)
		go func() { done <- c.hold(ctx, a, Decision{}, c.decide(a)) }()
		c.waiting(t, 1)
		cancel()
		if d := <-done; d.Verdict != Deny || d.Reason != "the gate was closed" {
			t.Errorf("%+v", d)
		}
		// The question stays pending: the next attempt joins it, or gets its answer.
		if q := c.questions(); len(q) != 1 || q[0].Waiting != 0 {
			t.Errorf("%+v", q)
		}
		c.say(a, Decision{Verdict: Allow})
		if d := c.hold(t.Context(), a, Decision{}, c.decide(a)); d.Verdict != Allow {
			t.Errorf("already decided: %+v", d)
		}
		c.told()
	})
}

func TestHold_DeniesWhenNotReported(t *testing.T) {
	t.Parallel()
	c := newClerk(Bounds{Ask: time.Minute, Questions: 1, Waiting: 1})
	c.told()
	a := at("a.example", 443)
	if d := c.hold(t.Context(), a, Decision{}, c.decide(a)); d.Verdict != Deny || len(c.questions()) != 0 {
		t.Errorf("%+v, %+v", d, c.questions())
	}
}

// TestHold_SeesConcurrentPolicy checks that hold never misses a policy that arrives while a request begins to wait:
// after it, no request waits for what the policy decides.
func TestHold_SeesConcurrentPolicy(t *testing.T) {
	t.Parallel()
	for range 200 {
		c := newClerk(Bounds{Ask: time.Minute, Questions: 4, Waiting: 4})
		a := at("a.example", 443)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if d := c.hold(t.Context(), a, Decision{}, c.decide(a)); d.Verdict != Allow {
					t.Errorf("%+v", d)
				}
			})
		}
		wg.Go(func() { c.say(a, Decision{Verdict: Allow}) })
		wg.Wait()
		c.told()
	}
}

// TestPendingRequests_AreBounded checks for any sequence of requests, decisions and waits that the bounds hold, that
// each pending request has one start and one end, and that nothing is held after its end.
func TestPendingRequests_AreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newClerk(Bounds{Ask: time.Minute, Questions: 3, Waiting: 4})
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			p := at(fmt.Sprintf("h%d.example", rapid.IntRange(0, 5).Draw(t, "host")), 443)
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				c.raise(p, Decision{}, c.decide(p), 0)
			case 2:
				c.say(p, rapid.SampledFrom([]Decision{{}, {Verdict: Allow}, {Verdict: Ask}}).Draw(t, "says"))
			case 3:
				c.pass(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			}
			if q := c.questions(); len(q) > 3 || len(q) > 0 && !q[0].Until.After(c.clock) {
				t.Fatalf("%v: %+v", c.clock, q)
			}
		}
		c.pass(time.Hour)
		if len(c.open) != 0 {
			t.Fatalf("%+v", c.questions())
		}
		open := map[string]bool{}
		for _, e := range c.told() {
			if open[e.Name] == (e.Verdict == Ask) {
				t.Fatalf("%s starts or ends twice", e.Name)
			}
			open[e.Name] = e.Verdict == Ask
		}
		for n, is := range open {
			if is {
				t.Fatalf("%s has no end", n)
			}
		}
	})
}

func TestRule_AsksForUndecided(t *testing.T) {
	t.Parallel()
	n := network(t, "a.example udp://a.example:53 10.0.0.0/8:22", "c.example 1.1.1.0/24")
	n.Ask = true
	p, pins := Rules(n), newPins()
	pub, shared, priv := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.35"),
		netip.MustParseAddr("10.1.2.3")
	for h, a := range map[string]netip.Addr{"a.example": pub, "b.example": shared, "c.example": shared, "d.example": priv,
		"e.example": netip.MustParseAddr("1.1.1.1")} {
		pins.put(name(h), []netip.Addr{a}, time.Minute, noon)
	}
	pins.put(name("only.c.example"), []netip.Addr{netip.MustParseAddr("93.184.216.36")}, time.Minute, noon)
	for _, x := range []struct {
		proto   Proto
		to      string
		verdict Verdict
		asks    string
	}{
		{TCP, "93.184.216.34:443", Allow, ""}, {TCP, "93.184.216.34:80", Ask, "a.example:80"},
		{UDP, "93.184.216.34:443", Ask, "a.example:443"},
		{TCP, "93.184.216.35:443", Ask, "b.example:443"}, // c.example is denied, and has the same address
		{TCP, "10.1.2.3:443", Deny, ""}, {TCP, "10.1.2.3:22", Allow, ""}, {TCP, "10.9.9.9:80", Deny, ""},
		{TCP, "169.254.169.254:80", Deny, ""},
		{TCP, "1.1.1.1:443", Deny, ""}, {TCP, "1.1.1.2:443", Deny, ""},
		{TCP, "8.8.8.8:443", Ask, ":443"}, {UDP, "8.8.8.8:53", Ask, ":53"}, {TCP, "[2606:4700:4700::1111]:443", Ask, ":443"},
		{TCP, "[64:ff9b::a00:1]:443", Deny, ""}, {TCP, "[2002:a00:1::]:443", Deny, ""}, {TCP, "192.0.0.3:80", Deny, ""},
		{TCP, "224.0.0.1:80", Deny, ""}, {TCP, "[::ffff:8.8.8.8]:80", Deny, ""},
	} {
		to := netip.MustParseAddrPort(x.to)
		r := rule(p, pins, x.proto, to.Addr(), to.Port(), noon)
		got := ""
		if r.verdict == Ask {
			q := r.asks(x.proto, to.Addr(), to.Port())
			got = fmt.Sprintf("%s:%d", q.name, q.port)
			if q.name.IsZero() != q.addr.IsValid() {
				t.Errorf("%s: %+v", x.to, q)
			}
		}
		if r.verdict != x.verdict || got != x.asks || r.why.Reason == "" {
			t.Errorf("%s %s: %v %q (%s), want %v %q", x.proto, x.to, r.verdict, got, r.why.Reason, x.verdict, x.asks)
		}
	}
	r := ruling{verdict: Ask}
	for d, want := range map[string]Decision{"late": {Reason: "late"}, "the approval no longer holds": {Verdict: Allow}} {
		if got := r.settled(want); got.verdict != Deny || got.why.Reason != d || got.why.Verdict != Deny {
			t.Errorf("%+v", got)
		}
	}
	if got := (ruling{verdict: Allow}).settled(Decision{}); got.verdict != Allow {
		t.Errorf("%+v", got)
	}
}
