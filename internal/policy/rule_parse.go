package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// ParseRule parses a rule in its short form: "example.com", "*.example.com:443", "10.0.0.0/8:5432,6000-6100",
// "udp://1.2.3.4:123", "[2001:db8::/32]:443". The default port of an allow rule for a name is 443. ",private" at the
// end is Rule.Private.
func ParseRule(s string, denies bool) (Rule, error) {
	r := Rule{Denies: denies}
	rest := s
	if scheme, after, ok := strings.Cut(s, "://"); ok {
		switch Protocol(scheme) {
		case TCP, UDP:
			r.Protocol, rest = Protocol(scheme), after
		default:
			return Rule{}, fault.New(fault.Invalid, "unknown protocol %[2]q in rule %[1]q: must be tcp or udp", s, scheme).
				WithHint("use a name alone, such as example.com:443")
		}
	}
	rest, r.Private = strings.CutSuffix(rest, PrivateSuffix)
	where, ports, hasPorts := rest, "", false
	switch inner, bracketed := strings.CutPrefix(rest, "["); {
	case bracketed:
		var closed bool
		where, ports, closed = strings.Cut(inner, "]")
		if ports, hasPorts = strings.CutPrefix(ports, ":"); !closed || !hasPorts && ports != "" ||
			!strings.Contains(where, ":") {
			return Rule{}, fault.New(fault.Invalid, "invalid rule %q", s).WithHint(ruleHint)
		}
	case strings.Count(rest, ":") < 2:
		where, ports, hasPorts = strings.Cut(rest, ":")
	}
	err := r.place(where)
	if err == nil && hasPorts {
		r.Ports, err = parsePorts(strings.Split(ports, ","))
	}
	if err == nil {
		err = r.settle()
	}
	switch {
	case err != nil && where == s:
		return Rule{}, err
	case err != nil:
		return Rule{}, fault.New(fault.Invalid, "rule %q", s).Because(err).WithHint("%s", orHint(err, ruleHint))
	}
	return r, nil
}

const ruleHint = "use a rule such as example.com, *.example.com:443, 10.0.0.0/8:5432, " +
	"udp://192.0.2.1:123, [2001:db8::/32]:443 or mirror.corp.example:443,private"

func orHint(err error, hint string) string {
	if h := fault.HintOf(err); h != "" {
		return h
	}
	return hint
}

// place parses the name, address or range of addresses of r.
func (r *Rule) place(s string) (err error) {
	addr, aerr := netip.ParseAddr(s)
	switch {
	case aerr == nil && addr.Zone() == "":
		r.Net = netip.PrefixFrom(addr, addr.BitLen())
	case strings.Contains(s, "/") || aerr == nil:
		r.Net, err = netip.ParsePrefix(s)
		switch {
		case err != nil && strings.Trim(s[:strings.IndexByte(s+"/", '/')], "0123456789abcdefABCDEF.:") != "":
			return fault.New(fault.Invalid, "invalid host %q", s).
				WithHint("use the host alone; for paths use a mapping such as {host: example.com, paths: [/v1/*]}")
		case err != nil:
			return fault.New(fault.Invalid, "invalid address range %q", s).
				WithHint("use a range such as 10.0.0.0/8 or 2001:db8::/32")
		case r.Net != r.Net.Masked():
			return fault.New(fault.Invalid, "invalid address range %q: it has bits beyond its prefix", s).
				WithHint("use %s, or the address alone", r.Net.Masked())
		}
	default:
		r.Host, err = ParsePattern(s)
		return err
	}
	if r.Net.Addr().Is4In6() {
		return fault.New(fault.Invalid, "%q is IPv4 in another form", s).WithHint("use %s", r.Net.Addr().Unmap())
	}
	return nil
}

// parsePorts parses ports and ranges of ports, and sorts them.
func parsePorts(list []string) (ports []Ports, err error) {
	for _, s := range list {
		low, high, isRange := strings.Cut(s, "-")
		if !isRange {
			high = low
		}
		l, ok := number(low, 65535)
		h, hok := number(high, 65535)
		if !ok || !hok || l < 1 || h < l || isRange && l == h {
			return nil, fault.New(fault.Invalid, "invalid port %q", s).
				WithHint("use ports such as 443 or 8000-8100, from 1 to 65535")
		}
		ports = append(ports, Ports{uint16(l), uint16(h)})
	}
	slices.SortFunc(ports, func(a, b Ports) int { return cmp.Or(cmp.Compare(a.Low, b.Low), cmp.Compare(a.High, b.High)) })
	joined := ports[:0]
	for _, p := range ports {
		if n := len(joined); n > 0 && int(p.Low) <= int(joined[n-1].High)+1 {
			joined[n-1].High = max(joined[n-1].High, p.High)
			continue
		}
		joined = append(joined, p)
	}
	return joined, nil
}

// settle sets the defaults of an allow rule, and refuses settings that contradict each other.
func (r *Rule) settle() error {
	byName := !r.Host.IsZero()
	switch {
	case byName == r.Net.IsValid():
		return fault.New(fault.Invalid, "a rule requires either host or cidr")
	case r.hasHTTP() && !byName:
		return fault.New(fault.Invalid, "methods, paths, query, max_request and rate require a host").
			WithHint("name the host instead of its address")
	case r.hasHTTP() && r.Protocol == UDP:
		return fault.New(fault.Invalid, "methods, paths, query, max_request and rate are not supported for udp").
			WithHint("omit the protocol")
	case r.Private && (r.Denies || !byName):
		return fault.New(fault.Invalid, "private is only valid in allow rules with a host").
			WithHint("move the rule to allow, and name the host; an address rule does not need private")
	case r.Denies:
		if r.Query != nil || r.limited() || r.MaxBytes != 0 {
			return fault.New(fault.Invalid, "query, max_request, max_bytes and rate are only valid in allow rules").
				WithHint("move the rule to allow")
		}
		return nil
	case slices.Contains(r.Methods, "CONNECT"):
		return fault.New(fault.Invalid, "CONNECT opens a tunnel to any destination").WithHint("allow the hosts themselves")
	}
	if r.Protocol == "" {
		r.Protocol = TCP
	}
	if r.Ports == nil {
		if !byName || r.Protocol != TCP {
			return fault.New(fault.Invalid, "an allow rule for an address or udp requires ports").
				WithHint("add them, for example 10.0.0.0/8:5432 or udp://ntp.example.com:123")
		}
		r.Ports = []Ports{{443, 443}}
	}
	return nil
}
