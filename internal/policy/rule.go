package policy

import (
	"net/netip"
	"strconv"
	"strings"
)

// Origin is where a setting of a policy comes from.
type Origin struct {
	Source string // the name of a file, "built-in", or a flag
	Line   int    // 0 if the source has no lines
}

// String returns text such as "coppice.yaml:3", or only the source.
func (o Origin) String() string {
	if o.Line > 0 && !strings.HasPrefix(o.Source, "--") { // a flag has one line
		return o.Source + ":" + strconv.Itoa(o.Line)
	}
	return o.Source
}

// BuiltIn reports whether the setting is built in.
func (o Origin) BuiltIn() bool { return strings.HasPrefix(o.Source, builtIns) }

// Protocol is the protocol of a packet.
type Protocol string

// The protocols.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Ports is a range of ports, both ends included.
type Ports struct{ Low, High uint16 }

// String returns text such as "443" or "8000-8100".
func (p Ports) String() string {
	if p.Low == p.High {
		return strconv.Itoa(int(p.Low))
	}
	return strconv.Itoa(int(p.Low)) + "-" + strconv.Itoa(int(p.High))
}

// Rule matches network destinations, either by Host or by Net. An allow rule always has a protocol and ports; in a
// deny rule, a missing one matches everything.
type Rule struct {
	Denies   bool
	Name     string // for people; may be ""
	Host     Pattern
	Net      netip.Prefix
	Protocol Protocol
	Ports    []Ports // in order, without overlap
	// Private lets Host lead to addresses that are Inside, which otherwise need a separate rule. Only an allow rule has
	// it.
	Private bool

	// The fields below are about HTTP and require a Host. nil matches everything.
	Methods []string          // in order
	Paths   []string          // in order; "/a" or "/a/*"
	Query   map[string]string // allowed keys, with their values; "*" is any value

	MaxRequest int64 // in bytes, per request; 0 is unlimited
	MaxBytes   int64 // in bytes, in total, in both directions; 0 is unlimited
	Rate       Rate

	At Origin
}

// conditional reports whether r matches only some requests to its destinations.
func (r Rule) conditional() bool { return r.Methods != nil || r.Paths != nil || r.Query != nil }

// limited reports whether r limits single requests.
func (r Rule) limited() bool { return r.MaxRequest != 0 || r.Rate != Rate{} }

// hasHTTP reports whether r can only be enforced by inspecting requests.
func (r Rule) hasHTTP() bool { return r.conditional() || r.limited() }

// short reports whether r can be written in the short form.
func (r Rule) short() bool { return r.Name == "" && !r.hasHTTP() && r.MaxBytes == 0 }

// PrivateSuffix ends a rule with Private in the short form.
const PrivateSuffix = ",private"

// where returns r in the short form that ParseRule parses.
func (r Rule) where() string {
	var b strings.Builder
	if r.Protocol == UDP || r.Denies && r.Protocol != "" {
		b.WriteString(string(r.Protocol) + "://")
	}
	switch {
	case !r.Host.IsZero():
		b.WriteString(r.Host.String())
	case r.Net.Addr().Is6():
		b.WriteString("[" + r.cidr() + "]")
	default:
		b.WriteString(r.cidr())
	}
	for i, p := range r.Ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(p.String())
	}
	if r.Private {
		b.WriteString(PrivateSuffix)
	}
	return b.String()
}

func (r Rule) cidr() string {
	if r.Net.IsSingleIP() {
		return r.Net.Addr().String()
	}
	return r.Net.String()
}

// String formats r for a policy file: in short form if that is complete, else as a mapping. Equal rules have equal
// texts, whatever their origin.
func (r Rule) String() string {
	if r.short() {
		return r.where()
	}
	text, err := r.MarshalJSON()
	if err != nil {
		return r.where() // cannot happen: strings, numbers and lists of them can always be encoded
	}
	return string(text)
}

// MarshalJSON writes r as in a policy file.
func (r Rule) MarshalJSON() ([]byte, error) {
	if r.short() {
		return marshal(r.where())
	}
	return marshal(r.mapping())
}

// mapping is the long form of a rule.
func (r Rule) mapping() any {
	var ports []any
	for _, p := range r.Ports {
		if p.Low == p.High {
			ports = append(ports, p.Low)
		} else {
			ports = append(ports, p.String())
		}
	}
	m := struct {
		Name       string            `json:"name,omitempty"`
		Host       string            `json:"host,omitempty"`
		CIDR       string            `json:"cidr,omitempty"`
		Protocol   Protocol          `json:"protocol,omitempty"`
		Ports      []any             `json:"ports,omitempty"`
		Private    bool              `json:"private,omitempty"`
		Methods    []string          `json:"methods,omitempty"`
		Paths      []string          `json:"paths,omitempty"`
		Query      map[string]string `json:"query,omitzero"`
		MaxRequest string            `json:"max_request,omitempty"`
		MaxBytes   string            `json:"max_bytes,omitempty"`
		Rate       string            `json:"rate,omitempty"`
	}{Name: r.Name, Host: r.Host.String(), Protocol: r.Protocol, Ports: ports, Private: r.Private,
		Methods: r.Methods, Paths: r.Paths, Query: r.Query, Rate: r.Rate.String()}
	if r.Net.IsValid() {
		m.CIDR = r.cidr()
	}
	if r.MaxRequest != 0 {
		m.MaxRequest = FormatBytes(r.MaxRequest)
	}
	if r.MaxBytes != 0 {
		m.MaxBytes = FormatBytes(r.MaxBytes)
	}
	return m
}

// warning returns a possible mistake in r, or "".
func (r Rule) warning() string {
	switch {
	case r.Denies:
		return ""
	case r.Net.IsValid() && r.Net.Bits() < 8:
		return r.Net.String() + " names a large part of the internet, and by address, so no name is looked at"
	case len(r.Ports) == 1 && r.Ports[0] == Ports{1, 65535}:
		return r.where() + " allows every port"
	case r.Private && r.Host.below:
		return r.Host.String() + " with private allows private addresses to every name below " + r.Host.host.String()
	}
	return r.Host.Wide()
}
