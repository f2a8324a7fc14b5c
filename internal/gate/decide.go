package gate

import (
	"net/netip"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Proto is the protocol of a packet or connection.
type Proto string

// The protocols of a Request.
const (
	TCP  Proto = "tcp"
	UDP  Proto = "udp"
	ICMP Proto = "icmp"
	// DNS appears in events only.
	DNS Proto = "dns"
)

// Verdict is the answer of a policy.
type Verdict uint8

// The verdicts. The zero value denies. Ask denies until the policy changes; until then names, connections and flows
// are held.
const (
	Deny    Verdict = iota
	Allow           // let it pass
	Ask             // a person must approve first
	Inspect         // only HTTP, with a decision for each request
)

// String returns the name of the verdict.
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

// Request is a question to a Policy. It has one of these forms:
//
//   - Host alone: may the name be looked up at all, that is, could any port or
//     protocol be reached by it?
//   - Host and Addr: may the sandbox reach this port by this name? Addr is what the
//     gate itself resolved the name to.
//   - Host and Addr without Proto: the same for any port. Does the policy let the name lead
//     there?
//   - Addr alone: does the policy allow this very address, by a rule of addresses? Port
//     0 asks about any port.
//   - Host, Addr and HTTP: may this request be made there? Used if the answer without
//     HTTP was Inspect, or was for another name of Addr.
type Request struct {
	Proto Proto // "" if only Host is set
	Host  policy.Host
	Addr  netip.Addr
	Port  uint16
	HTTP  *policy.HTTPRequest
}

// Decision is the answer of a Policy.
type Decision struct {
	Verdict Verdict
	// TLS requires the connection to start with a ClientHello for Host. For TCP on port 443 that is the default,
	// unless Plain is set.
	TLS, Plain bool
	// Limits are those of every rule that allows the request; each applies on its own. Without an HTTP request only
	// MaxBytes applies, to the sum of all connections in both directions.
	Limits []Limit
	Rule   string // the rule that decided; "" if none did
	Reason string // why, in a few words
	Hint   string // the rule to write to change the decision
	Fix    string // the rule that would allow the denied address; may be ""
	// Private means that the rules that allow it let the name lead to addresses inside of organizations
	// (policy.Inside). Other special addresses stay denied.
	Private bool
}

// Limit is the limit of one rule; 0 is unlimited.
type Limit struct {
	Rule       string
	MaxRequest int64 // maximum bytes of one request
	MaxBytes   int64 // maximum bytes in total, in both directions
	Rate       policy.Rate
}

// Policy decides about destinations. Its methods are called from several goroutines and must not block. The gate asks
// it about every name and address, and overrides it only for addresses that are never a destination.
type Policy interface {
	Decide(Request) Decision
}

// denyAll is the default policy.
type denyAll struct{}

func (denyAll) Decide(Request) Decision {
	return Decision{Reason: "no policy"}
}

// ruling is the decision about one connection or echo request.
type ruling struct {
	verdict  Verdict     // Inspect if any name requires it
	byName   []named     // names that allow or inspect it, the most recently resolved first
	byAddr   Decision    // the decision about the address itself
	why      Decision    // the decision to report: the first that inspects, or allows, or the most specific denial
	name     policy.Host // the name to report
	mustHail bool        // must start with a ClientHello
}

// named is a name that opens a port, with its decision.
type named struct {
	name policy.Host
	Decision
}

// rule decides whether the sandbox may reach a port of addr, by the names that addr was resolved from or else by addr
// itself. The names in also count as names of addr even without a pin.
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
		// Traffic other than TLS does not say which name it is for: report the strictest. Approval is requested for
		// the most recently resolved name.
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

// leads decides whether a name may lead to addr on any port.
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

// inside reports whether d, a decision about addr, lets a name lead there although addr is special.
func (d Decision) inside(addr netip.Addr) bool { return d.Private && policy.Inside(addr) }

// leadsTo is the reason for denying an allowed name: the kind of its address.
func leadsTo(what string, addr netip.Addr) string {
	by := "a rule for the address allows"
	if policy.Inside(addr) {
		by = "a rule with private or " + by
	}
	return "the name leads to " + what + ", which only " + by
}

// passes reports whether d lets a connection pass.
func (d Decision) passes() bool { return d.Verdict == Allow || d.Verdict == Inspect }

// passes reports whether the connection may be made. If its verdict is Inspect and it need not be TLS, it must be
// HTTP.
func (r ruling) passes() bool { return r.verdict == Allow || r.verdict == Inspect }

// allTLS reports whether everything that allows the connection requires TLS.
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

// hailed returns the decision for a connection whose ClientHello names sni, or no name if sni is the zero Host.
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

// plain returns the decision for a connection that does not say which name it is for.
func (r ruling) plain() named {
	if len(r.byName) > 0 {
		return named{r.name, r.why}
	}
	return named{policy.Host{}, r.byAddr}
}
