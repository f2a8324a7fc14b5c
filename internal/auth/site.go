package auth

import (
	"net/netip"
	"net/url"
	"strings"
)

// Site is the kind of a Host header.
type Site int

// The sites.
const (
	Foreign Site = iota // an unknown name that another party may have pointed at the listener
	Own                 // this listener
	Preview             // the preview of a port, whose pages belong to a sandbox
)

// SiteOf classifies a Host header. local is the address that the connection came to; allowed are additional names of
// the daemon, in lower case and without a port.
//
// The daemon's names are localhost, names below it, loopback addresses, and local. Any port is accepted: the listener
// may be reached through a forwarded one, and a page in a browser gains nothing by it. A name whose first label is a
// number and two dashes is a preview, below localhost and below the domain previews; "" is none. With any other parent
// it is foreign, even below an allowed name.
func SiteOf(host string, local netip.Addr, allowed []string, previews string) Site {
	name, ok := hostName(host)
	if !ok {
		return Foreign
	}
	if a, err := netip.ParseAddr(name); err == nil {
		if a.Zone() == "" && (a.Unmap().IsLoopback() || local.IsValid() && a.Unmap() == local.Unmap().WithZone("")) {
			return Own
		}
	}
	label, below, _ := strings.Cut(name, ".")
	if number, box, found := strings.Cut(label, "--"); found && box != "" && number != "" &&
		strings.Trim(number, "0123456789") == "" {
		if below == "localhost" || previews != "" && below == previews {
			return Preview
		}
		return Foreign
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || contains(allowed, name) {
		return Own
	}
	return Foreign
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

// hostName returns the name or address in a Host header, in lower case and without brackets. ok is false if it is not
// a valid name.
func hostName(host string) (name string, ok bool) {
	if rest, found := strings.CutPrefix(host, "["); found {
		addr, port, closed := strings.Cut(rest, "]")
		a, err := netip.ParseAddr(addr)
		return addr, closed && err == nil && a.Is6() && (port == "" || port[0] == ':' && isPort(port[1:]))
	}
	name, port, found := strings.Cut(host, ":")
	if found && !isPort(port) {
		return "", false
	}
	name = strings.ToLower(name)
	return name, ValidHost(name)
}

// ValidHost reports whether s is a host name or IPv4 address in the form in which names are compared: lower case,
// no port, no empty label.
func ValidHost(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

func isPort(s string) bool { return s != "" && len(s) <= 5 && strings.Trim(s, "0123456789") == "" }

// SameOrigin reports whether a request comes from a page of its own site, or from no page. origin and site are the
// headers Origin and Sec-Fetch-Site, which a browser sets and a page cannot; host is the header Host, already
// accepted by SiteOf; scheme is the listener's, "" if a proxy may use either.
func SameOrigin(origin, site, host, scheme string) bool {
	switch site {
	case "", "same-origin", "none":
	default:
		return false
	}
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || scheme != "" && u.Scheme != scheme {
		return false
	}
	if u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.Host == "" {
		return false
	}
	return strings.EqualFold(withPort(u.Host, u.Scheme), withPort(host, u.Scheme))
}

// withPort adds the port that a scheme implies.
func withPort(host, scheme string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		return host
	}
	if scheme == "https" {
		return host + ":443"
	}
	return host + ":80"
}
