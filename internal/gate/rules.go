package gate

import (
	"net/netip"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Rules is the Policy that n is: what package policy decides for places and ports, and
// from that, which names exist at all and which addresses a rule names.
func Rules(n policy.Network) Policy { return rules{n} }

type rules struct{ policy.Network }

// Decide answers each of the forms that a Request has.
func (r rules) Decide(q Request) Decision {
	switch {
	case q.Proto == TCP && q.Port != 0:
		return r.place(policy.Request{Host: q.Host, Addr: q.Addr, Port: q.Port, Protocol: policy.TCP, HTTP: q.HTTP})
	case q.Proto == UDP && q.Port != 0:
		return r.place(policy.Request{Host: q.Host, Addr: q.Addr, Port: q.Port, Protocol: policy.UDP})
	case q.Proto == "" || q.Proto == ICMP:
		return r.anywhere(q.Host, q.Addr)
	}
	return Decision{Reason: "invalid request"}
}

// place is what the policy says of one port. Of a name it says no more than it would
// without the address; whether the address may be reached is asked as well.
func (r rules) place(q policy.Request) Decision {
	d := r.Network.Decide(q)
	out := Decision{Reason: d.Reason, Hint: d.Hint, Fix: d.Fix, Private: d.Private}
	if d.Rule != nil {
		out.Rule = written(d.Rule)
	}
	for _, l := range d.Limited {
		out.Limits = append(out.Limits, Limit{Rule: written(l), MaxRequest: l.MaxRequest, MaxBytes: l.MaxBytes, Rate: l.Rate})
	}
	switch d.Verdict {
	case policy.Allow:
		out.Verdict = Allow
	case policy.Ask:
		out.Verdict = Ask
	case policy.Inspect:
		out.Verdict = Inspect
	}
	return out
}

// written writes a rule for events.
func written(r *policy.Rule) string { return r.String() + " (" + r.At.String() + ")" }

// anywhere decides whether any port of a name, or of an address, can be reached. A
// policy has no end of ports, so what is tried are the ends of the ranges that its
// rules have, and what lies beside them: between two of those every port is decided in
// the same way.
func (r rules) anywhere(host policy.Host, addr netip.Addr) Decision {
	best := exists(r.place(policy.Request{Host: host, Addr: addr, Port: 443, Protocol: policy.TCP}))
	if best.Verdict == Allow {
		return best
	}
	for i := range r.Allow {
		rule := &r.Allow[i]
		covers := rule.Host.Matches(host)
		if host.IsZero() {
			covers = rule.Net.IsValid() && rule.Net.Contains(addr.Unmap())
		}
		if !covers {
			continue
		}
		for _, in := range rule.Ports {
			for _, port := range r.edges(in) {
				d := exists(r.place(policy.Request{Host: host, Addr: addr, Port: port, Protocol: rule.Protocol}))
				if d.Verdict == Allow {
					return d
				}
				if best.Verdict == Deny {
					best = d
				}
			}
		}
	}
	if best.Verdict == Deny && r.Ask {
		return r.elsewhere(host, addr, best)
	}
	return best
}

// elsewhere gives Ask where rules that deny some ports leave others to be asked about;
// else it gives d.
func (r rules) elsewhere(host policy.Host, addr netip.Addr, d Decision) Decision {
	for i := range r.Deny {
		for _, p := range r.Deny[i].Ports {
			for _, port := range []int{int(p.Low) - 1, int(p.High) + 1} {
				if port < 1 || port > 0xffff {
					continue
				}
				if a := r.place(
					policy.Request{Host: host, Addr: addr, Port: uint16(port), Protocol: policy.TCP}); a.Verdict == Ask {
					return a
				}
			}
		}
	}
	return d
}

// exists makes of a decision about a port one about whether the place exists: it does
// where single requests are decided on.
func exists(d Decision) Decision {
	if d.Verdict == Inspect {
		d.Verdict = Allow
	}
	return d
}

// edges gives the ports of a range at which another rule could begin to decide.
func (r rules) edges(in policy.Ports) []uint16 {
	ports := []uint16{in.Low, in.High}
	add := func(p int) {
		if p > int(in.Low) && p < int(in.High) {
			ports = append(ports, uint16(p))
		}
	}
	for _, all := range [][]policy.Rule{r.Deny, r.Allow} {
		for _, rule := range all {
			for _, p := range rule.Ports {
				add(int(p.Low) - 1)
				add(int(p.Low))
				add(int(p.High))
				add(int(p.High) + 1)
			}
		}
	}
	return ports
}
