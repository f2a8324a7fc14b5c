package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Host is a validated host name. It is parsed once, so that the name that is decided about is the one that is dialled:
// lower case, no trailing dot, labels that are valid in DNS, and nothing that a resolver could take for an address. The
// zero Host is not a name.
type Host struct{ name string }

const (
	maxHost  = 253
	maxLabel = 63
)

// ParseHost parses the name of a host. It refuses names that are not ASCII, because two different ones can look the
// same; their xn-- form is accepted.
func ParseHost(s string) (Host, error) {
	no := func(format string, args ...any) *fault.Error {
		e := fault.New(fault.Invalid, "invalid host name %q: "+format, append([]any{s}, args...)...)
		return e.WithHint("use a name alone, such as example.com")
	}
	name := strings.TrimSuffix(s, ".")
	switch {
	case s == "":
		return Host{}, no("it is empty")
	case len(name) > maxHost:
		return Host{}, no("it has more than %d bytes", maxHost)
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 0x80:
			return Host{}, no("it is not ASCII").WithHint("use its xn-- form, such as xn--bcher-kva.example")
		case c == '*':
			return Host{}, no("a * is not a host name")
		case !nameByte(c):
			return Host{}, no("it contains %q", c)
		}
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return Host{}, no("it is an address").
			WithHint("use cidr for an address, or a rule in the short form such as 192.0.2.1:443")
	}
	name = strings.ToLower(name)
	labels := strings.Split(name, ".")
	for i, l := range labels {
		switch {
		case l == "":
			return Host{}, no("it has an empty label")
		case len(l) > maxLabel:
			return Host{}, no("a label has more than %d bytes", maxLabel)
		case l[0] == '-' || l[len(l)-1] == '-':
			return Host{}, no("a label begins or ends with -")
		case strings.Contains(l[1:], "_"), l == "_", l[0] == '_' && i > len(labels)-3:
			return Host{}, no("a _ is only valid at the beginning of a label, and not in the last two labels")
		}
	}
	// inet_aton reads 127.1, 0x7f.1, 017700000001 and 2130706433 as addresses.
	if numeric(labels[len(labels)-1]) {
		return Host{}, no("it ends in a number, like an address")
	}
	return Host{name}, nil
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_'
}

// numeric reports whether inet_aton and the URL standard read a label as a number: digits, or 0x with hexadecimal
// digits, of which there may be none.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// String returns the name; "" for the zero Host.
func (h Host) String() string { return h.name }

// IsZero reports whether h is the zero Host.
func (h Host) IsZero() bool { return h.name == "" }

// unasked describes the kind of h if programs look up such names automatically, so that approval makes no sense, or
// returns "". These are the names outside public networks (RFC 6761, RFC 6762, RFC 7686, RFC 9476, and ICANN's
// reservation of internal), and those of services (RFC 8552), which are not hosts.
func (h Host) unasked() string {
	last := h.name[strings.LastIndexByte(h.name, '.')+1:]
	switch {
	case h.IsZero():
	case last == h.name,
		slices.Contains([]string{"alt", "arpa", "internal", "invalid", "local", "localhost", "onion"}, last):
		return "names outside public networks"
	case h.name[0] == '_', strings.Contains(h.name, "._"):
		return "names of services"
	}
	return ""
}

// Pattern matches hosts: one name, or with *.example.com every name below example.com, at any depth, but not
// example.com itself. The zero Pattern matches nothing.
type Pattern struct {
	host  Host
	below bool
}

// ParsePattern parses "example.com" or "*.example.com".
func ParsePattern(s string) (Pattern, error) {
	suffix, below := strings.CutPrefix(s, "*.")
	if s == "*" || suffix == "" && below {
		return Pattern{}, fault.New(fault.Invalid, "invalid host %q: it matches every host", s).
			WithHint("name hosts, such as example.com or *.example.com")
	}
	h, err := ParseHost(suffix)
	if err != nil {
		return Pattern{}, err
	}
	return Pattern{h, below}, nil
}

// Matches reports whether p matches h.
func (p Pattern) Matches(h Host) bool {
	switch {
	case p.host.IsZero() || h.IsZero():
		return false
	case p.below:
		return strings.HasSuffix(h.name, "."+p.host.name)
	}
	return h == p.host
}

// Within reports whether o matches every host that p matches.
func (p Pattern) Within(o Pattern) bool {
	if p.below {
		return o.below && (p.host == o.host || strings.HasSuffix(p.host.name, "."+o.host.name))
	}
	return o.Matches(p.host)
}

// IsZero reports whether p matches nothing.
func (p Pattern) IsZero() bool { return p.host.IsZero() }

// String returns p in the form that ParsePattern parses.
func (p Pattern) String() string {
	if p.below {
		return "*." + p.host.name
	}
	return p.host.name
}

// shared are suffixes below which anyone can register a name. The list catches the widest mistakes; it is not the whole
// public suffix list.
var shared = []string{
	"amazonaws.com", "ap-southeast-2.amazonaws.com", "appspot.com", "azureedge.net", "azurewebsites.net",
	"blob.core.windows.net",
	"blogspot.com", "cloudapp.net", "cloudfront.net", "co.in", "co.jp", "co.nz", "co.uk", "co.za", "com.au", "com.br",
	"com.cn", "com.tr",
	"deno.dev", "duckdns.org", "fastly.net", "firebaseapp.com", "fly.dev", "github.io", "gitlab.io", "googleapis.com",
	"herokuapp.com",
	"loca.lt", "netlify.app", "ngrok-free.app", "ngrok.io", "onrender.com", "org.uk", "pages.dev", "r2.dev", "run.app",
	"s3.amazonaws.com",
	"surge.sh", "trycloudflare.com", "vercel.app", "web.app", "windows.net", "workers.dev",
}

// Wide returns how p may match more than its writer expects, or "".
func (p Pattern) Wide() string {
	switch {
	case !p.below:
		return ""
	case !strings.Contains(p.host.name, "."):
		return p.String() + " matches everything below a top-level domain"
	case slices.Contains(shared, p.host.name):
		return p.String() + " matches hosts that anyone can create"
	}
	return ""
}
