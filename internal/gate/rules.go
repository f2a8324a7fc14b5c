package gate

import (
	"net/netip"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Rules returns the Policy that n defines. Package policy decides about names, addresses and ports; Rules derives
// from that which names exist and which addresses a rule names.
func Rules(n policy.Network) Policy { return rules{n} }

type rules struct{ policy.Network }

// Decide implements Policy for every form of Request.
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

// place decides about one port. For a name the decision ignores the address; whether the address may be reached is a
// separate request.
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

// written formats a rule for events.
func written(r *policy.Rule) string { return r.String() + " (" + r.At.String() + ")" }

// anywhere decides whether any port of a name or address can be reached. It tries the bounds of the port ranges of
// all rules, and the ports next to them: between two of those, every port is decided in the same way.
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

// elsewhere returns Ask if rules deny some ports but others would be asked about; otherwise d.
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

// exists converts a decision about a port into one about whether the destination exists: it does if single requests
// are decided on.
func exists(d Decision) Decision {
	if d.Verdict == Inspect {
		d.Verdict = Allow
	}
	return d
}

// edges returns the ports of a range at which the decision may change.
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
