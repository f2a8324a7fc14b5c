package policy

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Network is the set of reachable destinations. The zero Network is empty.
type Network struct {
	Mode  Net
	Allow []Rule
	Deny  []Rule // wins over Allow
	Ask   bool   // approval is requested for destinations that no rule names
}

// Request is a destination to decide about. A name is decided about twice: alone, before it is resolved, and with the
// address, before that is dialled.
type Request struct {
	Host     Host       // zero for an address that no name was resolved to
	Addr     netip.Addr // zero for a name that was not resolved yet
	Port     uint16
	Protocol Protocol
	HTTP     *HTTPRequest // nil if the HTTP request is not known
}

// Inspects reports whether n can only be enforced by inspecting HTTP requests.
func (n Network) Inspects() bool {
	return n.Mode == NetRules && (slices.ContainsFunc(n.Allow, Rule.hasHTTP) || slices.ContainsFunc(n.Deny, Rule.hasHTTP))
}

// Verdict is the decision about a request.
type Verdict string

// The verdicts. Only Allow lets anything pass.
const (
	Deny    Verdict = "deny"
	Allow   Verdict = "allow"
	Ask     Verdict = "ask"     // denied until the request is approved
	Inspect Verdict = "inspect" // depends on the HTTP request: Decide must be called again with it
)

// Decision is a verdict, its reason, and what would change it. The zero Decision denies.
type Decision struct {
	Verdict Verdict
	Rule    *Rule // the rule that decided; nil if none did
	Reason  string
	Hint    string // the line to add or to remove; may be ""
	// Fix is the rule, in short form, that would allow the denied address; "" for other decisions, and if no single
	// rule would.
	Fix string
	// Private means that Verdict passes by rules with Private, because the address is Inside.
	Private bool

	// The smallest limits of all rules that allow it; 0 is unlimited.
	MaxRequest, MaxBytes int64
	Rate                 Rate
	// Limited are the allowing rules that have limits, in unspecified order. Each applies on its own.
	Limited []*Rule
}

// String returns the destination in the short form of a rule.
func (q Request) String() string {
	s := q.Host.String()
	if s == "" && q.Addr.IsValid() {
		if s = plain(q.Addr).String(); plain(q.Addr).Is6() {
			s = "[" + s + "]"
		}
	}
	if q.Protocol == UDP {
		s = "udp://" + s
	}
	return s + ":" + strconv.Itoa(int(q.Port))
}

// Decide decides about q. A destination without a rule is denied, and a deny rule wins over any allow rule. A rule
// for a name never allows a bare address, nor one for addresses a name. An address that is not public is denied,
// whatever its name, unless a rule for addresses allows it, or it is Inside and the name's rule is Private.
func (n Network) Decide(q Request) Decision {
	switch {
	case q.Host.IsZero() && !q.Addr.IsValid(), q.Port == 0, q.Protocol != TCP && q.Protocol != UDP,
		q.HTTP != nil && q.Protocol != TCP:
		return Decision{Verdict: Deny, Reason: "invalid request"}
	case n.Mode == NetOff || n.Mode == "":
		return Decision{Verdict: Deny, Reason: "the network is off",
			Hint: "network: {allow: [" + strconv.Quote(q.String()) + "]}"}
	}
	denied, perhaps := n.denied(q)
	switch {
	case denied != nil:
		return Decision{Verdict: Deny, Rule: denied, Reason: "a rule denies it",
			Hint: "remove it from deny at " + denied.At.String()}
	case n.Mode == NetHost:
		return Decision{Verdict: Allow, Reason: "the sandbox uses the host's network, without rules"}
	case n.Mode != NetRules:
		return Decision{Verdict: Deny, Reason: "unknown network"}
	case q.HTTP != nil && q.HTTP.Method == "CONNECT":
		return Decision{Verdict: Deny, Reason: "CONNECT opens a tunnel to any destination"}
	}
	if in, what, ok := guarded(plain(q.Addr)); ok && !n.names(q, in) {
		return n.inside(q, what, perhaps)
	}
	return n.allowed(q, perhaps)
}

// inside decides about a special address that no rule names. what describes it. perhaps is a rule that may still deny
// the HTTP request.
func (n Network) inside(q Request, what string, perhaps *Rule) Decision {
	address := "the address"
	if !q.Host.IsZero() {
		address = "its address " + plain(q.Addr).String()
	}
	d := Decision{Verdict: Deny, Reason: address + " is " + what + ", which only "}
	if q.Host.IsZero() || !Inside(q.Addr) {
		d.Reason += "a rule for the address allows"
		d.Fix = Request{Addr: q.Addr, Port: q.Port, Protocol: q.Protocol}.String()
		d.Hint = "if that is meant: network: {allow: [" + strconv.Quote(d.Fix) + "]}"
		return d
	}
	if p := n.Privately().allowed(q, perhaps); p.Verdict == Allow || p.Verdict == Inspect || p.Rule != nil {
		p.Private = p.Verdict != Deny
		if all := n.allowed(q, perhaps); p.Verdict == Allow && (all.Verdict == Allow || all.Verdict == Inspect) {
			// The limits of other rules for the name apply there as well.
			all.Private = true
			return all
		}
		return p
	}
	d.Reason += "a rule with private or a rule for the address allows"
	by := n.allowed(q, perhaps)
	if r := by.Rule; r != nil && !r.short() {
		d.Rule, d.Hint = r, "if that is meant: add private: true to the rule at "+r.At.String()
		return d
	}
	d.Rule, d.Fix = by.Rule, q.String()+PrivateSuffix
	d.Hint = "if that is meant: network: {allow: [" + strconv.Quote(d.Fix) + "]}"
	return d
}

// Privately returns n with only the allow rules that are Private, and without Ask. What it allows, n allows at
// addresses that are Inside.
func (n Network) Privately() Network {
	n.Allow, n.Ask = slices.DeleteFunc(slices.Clone(n.Allow), func(r Rule) bool { return !r.Private }), false
	return n
}

// denied returns the rule that denies q. If there is none, perhaps is a rule that denies some HTTP requests to q.
func (n Network) denied(q Request) (rule, perhaps *Rule) {
	for i := range n.Deny {
		r := &n.Deny[i]
		switch {
		case !r.covers(q):
		case !r.conditional() || q.HTTP != nil && r.forbids(q.HTTP):
			rule = first(rule, r)
		case q.HTTP == nil:
			perhaps = first(perhaps, r)
		}
	}
	return rule, perhaps
}

// allowed decides by the allow rules. perhaps is a rule that may still deny the HTTP request.
func (n Network) allowed(q Request, perhaps *Rule) Decision {
	var is, may *Rule
	d := Decision{}
	for i := range n.Allow {
		r := &n.Allow[i]
		switch {
		case !r.covers(q):
			continue
		case q.HTTP == nil && r.hasHTTP():
			may = first(may, r)
			if r.limited() || r.MaxBytes != 0 {
				perhaps = first(perhaps, r) // its limit applies although another rule may allow all requests
			}
			continue
		case q.HTTP != nil && !r.allows(q.HTTP):
			may = first(may, r)
			continue
		}
		is = first(is, r)
		if r.limited() || r.MaxBytes != 0 {
			d.Limited = append(d.Limited, r)
		}
		d.MaxRequest, d.MaxBytes = least(d.MaxRequest, r.MaxRequest), least(d.MaxBytes, r.MaxBytes)
		if r.Rate != (Rate{}) && (d.Rate == Rate{} || r.Rate.Compare(d.Rate) < 0) {
			d.Rate = r.Rate
		}
	}
	switch {
	case q.HTTP == nil && (is != nil || may != nil) && (is == nil || perhaps != nil):
		rule := perhaps
		if rule == nil {
			rule = may
		}
		return Decision{Verdict: Inspect, Rule: rule, Reason: "it depends on the HTTP request"}
	case is != nil:
		slices.SortFunc(d.Limited, before)
		d.Verdict, d.Rule, d.Reason = Allow, is, "a rule allows it"
		return d
	}
	d = Decision{Verdict: Deny, Rule: may, Reason: "no rule names it",
		Hint: "network: {allow: [" + strconv.Quote(q.String()) + "]}"}
	if may != nil {
		d.Reason, d.Hint = "a rule names the host, and not this request", "widen the rule at "+may.At.String()
	}
	if q.HTTP != nil && may != nil && may.Paths != nil {
		if _, ok := cleanPath(q.HTTP.Path); !ok {
			d.Reason, d.Hint = "its path is ambiguous", ""
			return d
		}
	}
	// Approval is not requested for a host that a rule names: the rule is the decision about its other requests.
	switch {
	case !n.Ask || may != nil:
	case q.Host.unasked() != "":
		d.Reason += ", and no approval is requested for " + q.Host.unasked()
	default:
		d.Verdict = Ask
	}
	return d
}

// covers reports whether r is about the destination of q, without its HTTP request. An allow rule without ports or
// protocol covers nothing.
func (r *Rule) covers(q Request) bool {
	if !r.Denies && (len(r.Ports) == 0 || r.Protocol == "") {
		return false
	}
	if r.Protocol != q.Protocol && r.Protocol != "" {
		return false
	}
	if len(r.Ports) > 0 &&
		!slices.ContainsFunc(r.Ports, func(p Ports) bool { return p.Low <= q.Port && q.Port <= p.High }) {
		return false
	}
	addr := plain(q.Addr)
	switch {
	case !r.Host.IsZero():
		return r.Host.Matches(q.Host)
	case r.Denies:
		in := embedded(addr)
		return r.Net.Contains(addr) || in.IsValid() && r.Net.Contains(in)
	case !q.Host.IsZero():
		return false
	}
	return r.Net.Contains(addr)
}

// names reports whether an allow rule for addresses inside of in covers the address of q.
func (n Network) names(q Request, in netip.Prefix) bool {
	q.Host, q.HTTP = Host{}, nil
	return slices.ContainsFunc(n.Allow, func(r Rule) bool {
		return r.Net.IsValid() && r.Net.Bits() >= in.Bits() && in.Contains(r.Net.Addr()) && r.covers(q)
	})
}

// first returns the rule whose text comes first, so that the result does not depend on the order of the rules.
func first(a, b *Rule) *Rule {
	if a == nil || before(b, a) < 0 {
		return b
	}
	return a
}

// before compares rules by their texts and origins, independently of their order in a list.
func before(a, b *Rule) int {
	return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.At.String(), b.At.String()))
}

// least returns the smaller of two limits; 0 is unlimited.
func least(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// ParseRequest parses "HOST", "HOST:PORT", or an address in the same forms, with the prefix udp:// for UDP. The default
// port is 443.
func ParseRequest(s string) (Request, error) {
	scheme, place, ok := strings.Cut(s, "://")
	if !ok {
		scheme, place = string(TCP), s
	}
	switch colons := strings.Count(place, ":"); {
	case strings.HasPrefix(place, "["):
		if strings.HasSuffix(place, "]") {
			place += ":443"
		}
	case colons > 1:
		place = "[" + place + "]:443"
	case colons == 0:
		place += ":443"
	}
	r, err := ParseRule(scheme+"://"+place, false)
	if err != nil {
		return Request{}, fault.New(fault.Invalid, "invalid destination %q", s).
			Because(cmp.Or(errors.Unwrap(err), err)).WithHint("use HOST:PORT, for example example.com:443")
	}
	if r.Private {
		return Request{}, fault.New(fault.Invalid, "%q is a rule, and not a place in the network", s).
			WithHint("leave private out")
	}
	if r.Host.below || r.Net.IsValid() && !r.Net.IsSingleIP() || len(r.Ports) != 1 || r.Ports[0].Low != r.Ports[0].High {
		return Request{}, fault.New(fault.Invalid, "destination %q names more than one host or port", s).
			WithHint("use one host and port, for example example.com:443")
	}
	return Request{Host: r.Host.host, Addr: r.Net.Addr(), Port: r.Ports[0].Low, Protocol: r.Protocol}, nil
}
