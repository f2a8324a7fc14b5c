package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Bounds of DNS.
const (

	// systemTTL is the TTL of answers from the host's resolver, which does not report one.
	systemTTL = time.Minute
)

// resolver answers the sandbox's queries.
type resolver struct {
	policy  func() Policy
	pins    *pins
	journal *journal
	desk    *desk
	lookup  func(context.Context, string) ([]netip.Addr, time.Duration, error)
	now     func() time.Time
	slots   chan struct{} // one for each query in flight
	limit   *rate.Limiter
	tokens  tokens // of decoys, searched for in names

	mu      sync.Mutex
	pending map[policy.Host]*pending // guarded by mu
}

// pending is a lookup that several queries wait for: getaddrinfo(3) asks for both families at once.
type pending struct {
	done chan struct{}
	code dnsmessage.RCode // set before done is closed
}

func newResolver(
	current func() Policy, pins *pins, j *journal, k *desk,
	lookup func(context.Context, string) ([]netip.Addr, time.Duration, error), now func() time.Time,
) *resolver {
	return &resolver{
		policy: current, pins: pins, journal: j, desk: k, lookup: lookup, now: now,
		slots: make(chan struct{}, limit.DNSQueries), limit: rate.NewLimiter(limit.DNSLookups, limit.DNSLookupBurst),
		pending: map[policy.Host]*pending{},
	}
}

// systemLookup asks the host's resolver. The trailing dot disables the host's search domains.
func systemLookup(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
	return addrs, systemTTL, err
}

// take reserves a slot for a query in flight; give releases it.
func (r *resolver) take() bool {
	select {
	case r.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (r *resolver) give() { <-r.slots }

// answer returns the reply to one message, or nil if none is due. over is the maximum size of the reply, whatever the
// query says; 0 for UDP. The caller holds a slot (take).
func (r *resolver) answer(ctx context.Context, m []byte, over int) []byte {
	q, fail, due, ok := parseQuery(m)
	most := q.size
	if over > 0 {
		most = over
	}
	if !ok {
		r.deny(q, Decision{Reason: "the query is malformed or of a kind that is not answered"})
	}
	if !due {
		return nil
	}
	if !ok {
		return q.reply(fail, nil, 0, most)
	}
	if err := r.tokens.name(q.text); err != nil {
		r.journal.refused(Event{Proto: DNS, Name: q.text, Verdict: Deny}, err)
		return q.reply(dnsmessage.RCodeNameError, nil, 0, most)
	}
	if q.name.IsZero() {
		r.deny(q, Decision{Reason: "not a host name"})
		return q.reply(dnsmessage.RCodeNameError, nil, 0, most)
	}
	d := r.policy().Decide(Request{Host: q.name})
	if d.Verdict == Ask {
		if q.asked.Type != dnsmessage.TypeA && q.asked.Type != dnsmessage.TypeAAAA {
			// Approval is requested on connect; the reply must be true whatever the name.
			d.Reason += "; approval is requested on a connection to its addresses"
			r.deny(q, d)
			return q.reply(dnsmessage.RCodeSuccess, nil, 0, most)
		}
		d = r.held(ctx, q.name, d)
	}
	if d.Verdict != Allow {
		if d.Reason == "" {
			d.Reason = "no rule allows the name"
		}
		r.deny(q, d)
		return q.reply(dnsmessage.RCodeNameError, nil, 0, most)
	}
	switch q.asked.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
	default:
		// The name exists, but has no such record. For HTTPS and SVCB that means no keys for encrypted ClientHellos,
		// and no other hosts or ports.
		return q.reply(dnsmessage.RCodeSuccess, nil, 0, most)
	}
	addrs, ttl, known := r.pins.answer(q.name, r.now())
	if !known {
		if code := r.find(ctx, q, d); code != dnsmessage.RCodeSuccess {
			return q.reply(code, nil, 0, most)
		}
		addrs, ttl, _ = r.pins.answer(q.name, r.now())
	}
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.Is4() != (q.asked.Type == dnsmessage.TypeA) })
	return q.reply(dnsmessage.RCodeSuccess, addrs, ttl, most)
}

// held waits until a person decides about a name, and returns the decision. Meanwhile it releases the query's slot.
// Other holders of a slot only wait for lookups, which are bounded in time, so the slot is available again in time.
func (r *resolver) held(ctx context.Context, name policy.Host, d Decision) Decision {
	r.give()
	decide := func() Decision { return r.policy().Decide(Request{Host: name}) }
	came := r.desk.hold(ctx, place{proto: DNS, name: name}, d, decide)
	r.slots <- struct{}{}
	d = decide()
	if d.Verdict == Ask {
		return ruling{verdict: Ask}.settled(came).why
	}
	return d
}

func (r *resolver) deny(q query, d Decision) {
	r.journal.deny(Event{Proto: DNS, Name: q.text, Verdict: d.Verdict, Rule: d.Rule, Reason: d.Reason, Hint: d.Hint})
}

// find looks up a name, or waits for a pending lookup of it. If it returns dnsmessage.RCodeSuccess, the result is
// pinned.
func (r *resolver) find(ctx context.Context, q query, d Decision) dnsmessage.RCode {
	r.mu.Lock()
	p := r.pending[q.name]
	if p != nil {
		r.mu.Unlock()
		select {
		case <-p.done:
			return p.code
		case <-ctx.Done():
			return dnsmessage.RCodeServerFailure
		}
	}
	p = &pending{done: make(chan struct{}), code: dnsmessage.RCodeServerFailure}
	r.pending[q.name] = p
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.pending, q.name)
		r.mu.Unlock()
		close(p.done)
	}()
	p.code = r.ask(ctx, q, d)
	return p.code
}

// ask looks up a name outside and pins the allowed addresses.
func (r *resolver) ask(ctx context.Context, q query, d Decision) dnsmessage.RCode {
	if !r.limit.AllowN(r.now(), 1) {
		r.deny(q, Decision{Reason: "too many lookups in too short a time", Rule: d.Rule})
		return dnsmessage.RCodeServerFailure
	}
	if !r.journal.emit(
		Event{Kind: KindDNS, Proto: DNS, Name: q.name.String(), Verdict: Allow, Rule: d.Rule, Reason: d.Reason}) {
		return dnsmessage.RCodeServerFailure
	}
	ctx, cancel := context.WithTimeout(ctx, limit.DNSLookupSeconds*time.Second)
	defer cancel()
	found, ttl, err := r.lookup(ctx, q.name.String())
	if err != nil {
		return r.unresolved(q, d, err)
	}
	addrs, refused, why := r.allowed(q.name, found)
	switch {
	case len(addrs) == 0 && why.Reason != "":
		r.journal.deny(Event{Proto: DNS, Name: q.text, Addr: refused, Rule: d.Rule, Reason: why.Reason, Hint: why.Hint,
			Fix: why.Fix})
		return dnsmessage.RCodeNameError
	case len(addrs) == 0:
		r.end(q, d, "the name has no addresses")
		return dnsmessage.RCodeSuccess
	case !r.pins.put(q.name, addrs, ttl, r.now()):
		r.deny(q, Decision{Reason: "the sandbox has resolved too many names", Rule: d.Rule})
		return dnsmessage.RCodeServerFailure
	}
	return dnsmessage.RCodeSuccess
}

// unresolved reports a failed lookup and returns the code for the sandbox.
func (r *resolver) unresolved(q query, d Decision, err error) dnsmessage.RCode {
	code, why := dnsmessage.RCodeServerFailure, printable([]byte(err.Error()))
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		code, why = dnsmessage.RCodeNameError, "no such host"
	case errors.Is(err, context.Canceled):
		why = "the gate was closed"
	case errors.Is(err, context.DeadlineExceeded), dns != nil && dns.IsTimeout:
		why = "no answer in time"
	case dns != nil:
		why = printable([]byte(dns.Err))
	}
	r.end(q, d, why)
	return code
}

// end reports a lookup without an address. If the journal is full the event is lost, as the end of a connection is.
func (r *resolver) end(q query, d Decision, why string) {
	r.journal.emit(Event{Kind: KindEnd, Proto: DNS, Name: q.name.String(), Verdict: Allow, Rule: d.Rule,
		Reason: "not resolved: " + why})
}

// allowed returns the addresses that a name may lead to, without duplicates, and the first refused address, if any,
// with its decision.
func (r *resolver) allowed(name policy.Host, found []netip.Addr) (
	addrs []netip.Addr, refused netip.Addr, why Decision,
) {
	p := r.policy()
	for _, a := range found {
		a = a.Unmap()
		if d := leads(p, name, a); d.Verdict != Allow {
			if why.Reason == "" {
				refused, why = a, d
			}
			continue
		}
		if !slices.Contains(addrs, a) && len(addrs) < limit.DNSAnswers {
			addrs = append(addrs, a)
		}
	}
	return addrs, refused, why
}
