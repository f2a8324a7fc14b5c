// Package ports serves the ports of sandboxes over HTTP: host names for ports, signed links that expire, and a reverse
// proxy. It reaches sandboxes through its interface Engine.
//
// Each port has its own host, PORT--NAME-ID.localhost, and PORT--NAME-ID below a configured domain, so that a browser
// isolates it from other sandboxes and from the daemon's API. The ID is in it because a browser keeps cookies, storage
// and service workers for a host: a new sandbox with the name of a removed one must not share any.
//
// Access is decided before a request is forwarded: by a link, by the cookie that a link was exchanged for, or by
// Options.Allow for a caller that the listener has authenticated.
//
// The daemon imports it; it imports client/wire and fault.
package ports

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// localhost is a parent domain of all ports. Browsers resolve it to the machine that they run on (RFC 6761, 6.3).
const localhost = "localhost"

// Domain is another parent domain of all ports, at which other machines reach them. The zero value is none.
type Domain struct {
	Name string // lower case, as in preview.example.com
	Port int    // the port number in links; 0: that of the listener, and none behind a proxy
}

// maxDomain is the maximum length of the name of a Domain: a label, a dot and the name are a host name.
const maxDomain = 253 - maxLabel - 1

// ParseDomain parses NAME or NAME:PORT. The name has at least two labels; it is neither an IP address nor below
// localhost.
func ParseDomain(s string) (d Domain, err error) {
	bad := func(why string) (Domain, error) {
		return Domain{}, fault.New(fault.Invalid, "invalid domain of previews %.100q: %s", s, why).
			WithHint("use a domain whose subdomains all lead to this daemon, such as preview.example.com")
	}
	name, number, found := strings.Cut(s, ":")
	if found {
		var ok bool
		if d.Port, ok = parsePort(number); !ok {
			return bad("must be NAME or NAME:PORT")
		}
	}
	d.Name = lower(name)
	labels := strings.Split(d.Name, ".")
	last := labels[len(labels)-1]
	switch {
	case len(labels) < 2 || len(d.Name) > maxDomain:
		return bad("must have two labels or more, and at most " + strconv.Itoa(maxDomain) + " characters")
	case last == localhost:
		return bad("names below localhost always work")
	case strings.Trim(last, "0123456789") == "":
		return bad("must not be an IP address")
	}
	for _, l := range labels {
		if !plain(l) || len(l) > maxLabel {
			return bad("must be a host name")
		}
	}
	return d, nil
}

// maxLabel is the maximum length of a label of a host name, in bytes.
const maxLabel = 63

// Target is a port of a sandbox.
type Target struct {
	Port int
	Name string // name of the sandbox; "": the host has none
	ID   string // ID of the sandbox, which may not exist
}

// IsPreview reports whether a Proxy answers a Host header: any name below localhost or the domain, even an invalid one.
func (d Domain) IsPreview(host string) bool {
	name, _ := splitHost(host)
	_, below := d.below(lower(name))
	return below
}

// below cuts the parent domain of a name.
func (d Domain) below(name string) (label string, ok bool) {
	for _, parent := range []string{localhost, d.Name} {
		if label, ok = strings.CutSuffix(name, "."+parent); ok && label != "" && parent != "" {
			return label, true
		}
	}
	return "", false
}

// ParseHost parses PORT--NAME-ID.localhost, and PORT--NAME-ID below the domain, with or without a port number. The name
// and its "-" may be missing. NAME is one label of a-z, 0-9 and "-"; ID has no "-". Only a host that Host returns for
// the sandbox with that ID is its host: see IsHostOf.
func (d Domain) ParseHost(host string) (t Target, ok bool) {
	name, ok := splitHost(host)
	if !ok {
		return t, false
	}
	label, ok := d.below(lower(name))
	if !ok || len(label) > maxLabel {
		return t, false
	}
	number, box, ok := strings.Cut(label, "--")
	if !ok {
		return t, false
	}
	if t.Port, ok = parsePort(number); !ok {
		return Target{}, false
	}
	t.ID = box
	if i := strings.LastIndexByte(box, '-'); i >= 0 {
		t.Name, t.ID = box[:i], box[i+1:]
		ok = plain(t.Name)
	}
	if !ok || !plain(t.ID) {
		return Target{}, false
	}
	return t, true
}

// IsHostOf reports whether a parsed host is the only one of its port of the sandbox with this name and ID.
func (t Target) IsHostOf(name, id string) bool {
	return t == Target{t.Port, shown(t.Port, name, id), id}
}

// Host returns the host name of a port, below the domain if there is one: with the sandbox's ID, and its name if that
// is possible. ParseHost parses it.
func (d Domain) Host(port int, name, id string) string {
	return label(port, shown(port, name, id), id) + "." + cmp.Or(d.Name, localhost)
}

// label returns the first label of the host of a port; without a name if that is "".
func label(port int, name, id string) string {
	if name != "" {
		id = name + "-" + id
	}
	return strconv.Itoa(port) + "--" + id
}

// shown returns the name of a sandbox if it can be in the host of a port, and "" otherwise.
func shown(port int, name, id string) string {
	if !plain(name) || len(label(port, name, id)) > maxLabel {
		return ""
	}
	return name
}

// lower converts ASCII letters to lower case; strings.ToLower also maps some other characters to ASCII letters.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

// splitHost removes the port number from a Host header. IP addresses are not ok.
func splitHost(host string) (name string, ok bool) {
	name, number, found := strings.Cut(host, ":")
	if found {
		if _, ok := parsePort(number); !ok {
			return name, false
		}
	}
	return name, true
}

// parsePort parses a number from 1 to 65535 without sign or leading zeros.
func parsePort(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n > 0 && s == strconv.FormatUint(n, 10)
}

// plain reports whether a name can be a part of a label.
func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(name)-1) {
			return false
		}
	}
	return name != ""
}

// portOf returns the port number in links to a listener; 0: none.
func (d Domain) portOf(l Listener) int {
	if d.Name != "" && (d.Port != 0 || l.Proxied) {
		return d.Port
	}
	return int(l.Addr.Port())
}

// overHost returns host as browsers write it in URLs with a port number; 0: the one that the scheme implies.
func overHost(host string, port int, secure bool) string {
	if port != 0 && (secure || port != 80) && (!secure || port != 443) {
		return host + ":" + strconv.Itoa(port)
	}
	return host
}
