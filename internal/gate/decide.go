package gate

import (
	"net/netip"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Proto is what a packet or connection speaks.
type Proto string

// The protocols that a policy is asked about.
const (
	TCP  Proto = "tcp"
	UDP  Proto = "udp"
	ICMP Proto = "icmp"
	// DNS is never asked about; events have it.
	DNS Proto = "dns"
)

// Verdict is what a policy says.
type Verdict uint8

// The verdicts. The zero value denies, and so does Ask until there is another policy,
// for which names, connections and flows wait.
const (
	Deny    Verdict = iota
	Allow           // let it through
	Ask             // a person has to agree first
	Inspect         // only by HTTP, each request of which is asked about
)

// String names the verdict.
func (v Verdict) String() string {
	switch v {
	case Deny:
		return "deny"
	case Allow:
		return "allow"
	case Ask:
		return "ask"
	case Inspect:
		return "inspect"
	}
	return "unknown"
}

// Request is what the gate asks a policy. It takes one of these forms:
//
//   - Host alone: may the name be looked up at all, that is, could any port or
//     protocol be reached by it?
//   - Host and Addr: may the sandbox reach this port by this name? Addr is what the
//     gate itself found for the name.
//   - Host and Addr without Proto: the same of any port. Does the policy let the name lead
//     there?
//   - Addr alone: does the policy name this very address, by a rule of addresses? Port
//     0 asks whether it does for any port.
//   - Host, Addr and HTTP: may this request be made there? That is asked where the
//     answer without HTTP was Inspect, or was for another name of Addr.
type Request struct {
	Proto Proto // "" with Host alone
	Host  policy.Host
	Addr  netip.Addr
	Port  uint16
	HTTP  *policy.HTTPRequest
}

// Decision is a policy's answer.
type Decision struct {
	Verdict Verdict
	// TLS: the connection has to begin with a ClientHello for Host. For TCP on port 443
	// that is so in any case, unless Plain says otherwise.
	TLS, Plain bool
	// Limits are those of every rule that allows it, each of which holds by itself. Without
	// an HTTP request MaxBytes alone counts, which bounds what all connections carry
	// together, both ways.
	Limits []Limit
	Rule   string // which rule decided; "" if none did
	Reason string // why, in a few words
	Hint   string // what to write to have it otherwise
	Fix    string // the rule that would allow what is denied for its address; may be ""
	// Private: rules allow it that let the name lead to addresses inside of organizations
	// (policy.Inside). No other address that is special passes by that.
	Private bool
}

// Limit is what one rule says of what it allows; 0 is no limit.
type Limit struct {
	Rule       string
	MaxRequest int64 // bytes of one request
	MaxBytes   int64 // bytes of everything, both ways
	Rate       policy.Rate
}

// Policy decides. It is called from several goroutines, must not block, and is trusted:
// the gate asks it for every name and address of its own, and holds it to nothing but
// what never is a destination.
type Policy interface {
	Decide(Request) Decision
}

// denyAll is the policy where none is given.
type denyAll struct{}

func (denyAll) Decide(Request) Decision {
	return Decision{Reason: "no policy"}
}

// ruling is what the policy says of one connection or echo.
type ruling struct {
	verdict  Verdict     // Inspect if any name says so
	byName   []named     // allowed, or inspected, by these names, the one resolved last first
	byAddr   Decision    // allowed as an address, if its verdict is Allow
	why      Decision    // what to tell: the first that inspects, or allows, or the one that denies best
	name     policy.Host // the name to tell
	mustHail bool        // has to begin with a ClientHello
}

// named is a name that opens a port, with the decision that says so.
type named struct {
	name policy.Host
	Decision
}

// rule decides whether the sandbox may reach port of addr, by what addr was resolved
// from or, failing that, by addr itself. A name among also leads there whatever the pins
// say.
func rule(p Policy, pins *pins, proto Proto, addr netip.Addr, port uint16, now time.Time, also ...policy.Host) ruling {
	if why := never(addr); why != "" {
		return ruling{why: Decision{Reason: why}}
	}
	r := ruling{byAddr: p.Decide(Request{Proto: proto, Addr: addr, Port: port})}
	what := special(addr)
	if what != "" && r.byAddr.Verdict == Ask {
		r.byAddr = Decision{Reason: what + " that the policy does not name", Hint: r.byAddr.Hint}
	}
	names := pins.of(addr, now)
	for _, n := range also {
		if !n.IsZero() && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	for _, n := range names {
		d := p.Decide(Request{Proto: proto, Host: n, Addr: addr, Port: port})
		if (d.passes() || d.Verdict == Ask) && what != "" && r.byAddr.Verdict != Allow && !d.inside(addr) {
			d = Decision{Reason: leadsTo(what, addr), Rule: d.Rule, Hint: r.byAddr.Hint, Fix: r.byAddr.Fix}
		}
		if d.passes() {
			r.byName = append(r.byName, named{n, d})
		}
		// What is not TLS does not say which name it is for: the strictest is told. A person
		// is asked about the name that was resolved last.
		if r.name.IsZero() || d.Verdict == Ask && r.why.Verdict != Ask && !r.why.passes() || d.passes() &&
			(!r.why.passes() || d.Verdict == Inspect && r.why.Verdict == Allow) {
			r.name, r.why = n, d
		}
	}
	switch {
	case r.byAddr.Verdict == Allow && len(r.byName) == 0:
		r.name, r.why = policy.Host{}, r.byAddr
	case r.name.IsZero():
		r.why = r.byAddr
		if r.why.Reason == "" {
			r.why.Reason = "the address was not resolved by an allowed name"
			if what != "" {
				r.why.Reason = what + " that the policy does not name"
			}
		}
	}
	r.verdict = r.why.Verdict
	r.mustHail = r.passes() && proto == TCP && r.allTLS(port)
	if r.verdict > Inspect {
		r.verdict = Deny
	}
	switch {
	case r.why.Reason != "":
	case r.verdict == Deny:
		r.why.Reason = "no rule for the name allows this"
	case r.verdict == Inspect:
		r.why.Reason = "it depends on the HTTP request"
	case r.verdict == Ask:
		r.why.Reason = "not approved"
	}
	return r
}

// leads decides whether a name may lead to addr at all, at any port.
func leads(p Policy, name policy.Host, addr netip.Addr) Decision {
	if what := never(addr); what != "" {
		return Decision{Reason: "the name leads to " + what}
	}
	what := special(addr)
	if what == "" || p.Decide(Request{Addr: addr}).Verdict == Allow {
		return Decision{Verdict: Allow}
	}
	d := p.Decide(Request{Host: name, Addr: addr})
	if d.passes() && d.inside(addr) {
		return Decision{Verdict: Allow}
	}
	return Decision{Reason: leadsTo(what, addr), Rule: d.Rule, Hint: d.Hint, Fix: d.Fix}
}

// inside reports whether d, which is about addr, lets a name lead there though it is special.
func (d Decision) inside(addr netip.Addr) bool { return d.Private && policy.Inside(addr) }

// leadsTo is why a name that is allowed is denied: what describes its address.
func leadsTo(what string, addr netip.Addr) string {
	by := "a rule for the address allows"
	if policy.Inside(addr) {
		by = "a rule with private or " + by
	}
	return "the name leads to " + what + ", which only " + by
}

// passes reports whether d lets a connection come about.
func (d Decision) passes() bool { return d.Verdict == Allow || d.Verdict == Inspect }

// passes reports whether the connection comes about. Where its verdict is Inspect and it
// need not be TLS, it has to be HTTP.
func (r ruling) passes() bool { return r.verdict == Allow || r.verdict == Inspect }

// allTLS reports whether everything that allows the connection wants TLS.
func (r ruling) allTLS(port uint16) bool {
	tls := func(d Decision) bool { return d.TLS || port == 443 && !d.Plain }
	if r.byAddr.Verdict == Allow && !tls(r.byAddr) {
		return false
	}
	for _, n := range r.byName {
		if !tls(n.Decision) {
			return false
		}
	}
	return true
}

// hailed picks the decision for a connection that said which name it is for; sni is the zero
// Host if it said none.
func (r ruling) hailed(sni policy.Host) (named, bool) {
	for _, n := range r.byName {
		if n.name == sni {
			return n, true
		}
	}
	if r.byAddr.Verdict == Allow {
		return named{sni, r.byAddr}, true
	}
	return named{}, false
}

// plain is the decision for a connection that does not say which name it is for.
func (r ruling) plain() named {
	if len(r.byName) > 0 {
		return named{r.name, r.why}
	}
	return named{policy.Host{}, r.byAddr}
}
