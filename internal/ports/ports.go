// Package ports serves the ports of sandboxes over HTTP: host names for ports, signed links that expire, and a reverse
// proxy. It reaches sandboxes through its interface Engine.
//
// Each port has its own host, PORT--NAME.localhost, so that a browser isolates it from other sandboxes and from the
// daemon's API. Access is decided before a request is forwarded: by a link, by the cookie that a link was exchanged
// for, or by Options.Allow for a caller that the listener has authenticated.
//
// The daemon imports it; it imports client/wire and fault.
package ports

import (
	"net/netip"
	"strconv"
	"strings"
)

// domain is the parent domain of all ports. Browsers resolve it to the machine that they run on (RFC 6761, 6.3).
const domain = ".localhost"

// maxLabel is the maximum length of a label of a host name, in bytes.
const maxLabel = 63

// Target is a port of a sandbox.
type Target struct {
	Port int
	Name string // name or ID of the sandbox
}

// IsPreview reports whether a Proxy answers a Host header: any name below ".localhost", even an invalid one.
func IsPreview(host string) bool {
	name, _ := splitHost(host)
	return len(name) > len(domain) && strings.HasSuffix(lower(name), domain)
}

// ParseHost parses PORT--NAME.localhost, with or without a port number. The name is one label of a-z, 0-9 and "-"; a
// sandbox whose name has other characters is addressed by its ID.
func ParseHost(host string) (t Target, ok bool) {
	name, ok := splitHost(host)
	if !ok {
		return t, false
	}
	label, ok := strings.CutSuffix(lower(name), domain)
	if !ok || len(label) > maxLabel {
		return t, false
	}
	number, box, ok := strings.Cut(label, "--")
	if !ok || !plain(box) {
		return t, false
	}
	if t.Port, ok = parsePort(number); !ok {
		return Target{}, false
	}
	t.Name = box
	return t, true
}

// Host returns the host name of a port: with the sandbox's name if possible, else with its ID. ParseHost parses it.
func Host(port int, name, id string) string {
	label := strconv.Itoa(port) + "--" + name
	if !plain(name) || len(label) > maxLabel {
		label = strconv.Itoa(port) + "--" + id
	}
	return label + domain
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

// overHost returns host as browsers write it in URLs of a listener at addr.
func overHost(host string, addr netip.AddrPort, secure bool) string {
	if port := addr.Port(); port != 0 && (secure || port != 80) && (!secure || port != 443) {
		return host + ":" + strconv.Itoa(int(port))
	}
	return host
}
