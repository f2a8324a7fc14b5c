package ports

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// forWorker reports whether a browser requests the script of a service worker, to register or to update it. A service
// worker answers for all pages of its host, for as long as the browser keeps it.
func forWorker(r *http.Request) bool {
	return r.Header.Get("Service-Worker") != "" || r.Header.Get("Sec-Fetch-Dest") == "serviceworker"
}

// farHeaders are the headers of responses that affect more than pages of their host, with the reason. Set-Cookie is in
// staysHere. docs/ports.md has the table of headers that were considered, also of those that pass.
var farHeaders = map[string]string{
	"Clear-Site-Data":             "it deletes the cookies of the whole site, also of other previews",
	"Strict-Transport-Security":   "it is for all ports of the host name, and outlives the sandbox",
	"Public-Key-Pins":             "it is for all ports of the host name, and outlives the sandbox",
	"Public-Key-Pins-Report-Only": "it reports connections to all ports of the host name",
	"Expect-Ct":                   "it is for all ports of the host name, and outlives the sandbox",
	"Alt-Svc":                     "it sends later requests of the host to another server",
	"Nel":                         "it reports later requests of the host to another server, with the token in a link",
	"Report-To":                   "it sets where NEL reports to, beyond the response",
	"Service-Worker-Allowed":      "service workers are refused",
	"X-Sendfile":                  "Apache's mod_xsendfile and lighttpd in front of the daemon send a file of the host",
	"X-Sendfile2":                 "lighttpd in front of the daemon sends a part of a file of the host",
	"X-Lighttpd-Send-File":        "lighttpd in front of the daemon sends a file of the host",
	"X-Reproxy-Url":               "Perlbal and Apache in front of the daemon request an address of the sandbox's choice",
	"X-Reproxy-File":              "Perlbal in front of the daemon sends a file of the host",
	"Origin-Agent-Cluster":        "with ?0, pages of the same site could give up their isolation: see clean",
}

// proxyHeaders begin the names of headers by which nginx in front of the daemon lets a response choose what it sends
// instead, such as a file of the host, and for how long it caches that (ngx_http_proxy_module, proxy_ignore_headers).
const proxyHeaders = "X-Accel-"

// clean removes from a response what would affect other hosts, also from its trailers. It is
// httputil.ReverseProxy.ModifyResponse.
func clean(res *http.Response) error {
	cleanHeader(res.Header)
	// A page that chooses its whole host as its agent cluster cannot share one with another preview by setting
	// document.domain, and browsers can give it its own process.
	res.Header.Set("Origin-Agent-Cluster", "?1")
	cleanHeader(res.Trailer)
	if res.StatusCode != http.StatusSwitchingProtocols { // that body is also a Writer, and has no trailers
		res.Body = &trailed{res.Body, res}
	}
	return nil
}

// cleanHeader is clean for a header or for trailers.
func cleanHeader(h http.Header) {
	var kept []string
	for _, c := range h.Values("Set-Cookie") {
		if staysHere(c) {
			kept = append(kept, c)
		}
	}
	h.Del("Set-Cookie")
	for _, c := range kept {
		h.Add("Set-Cookie", c)
	}
	for name := range farHeaders {
		h.Del(name)
	}
	for name := range h {
		if strings.HasPrefix(name, proxyHeaders) {
			h.Del(name)
		}
	}
}

// trailed is the body of a response, whose trailers it cleans when they have been read.
type trailed struct {
	io.ReadCloser
	res *http.Response
}

// Read reads from the body. The transport has read the trailers when it returns io.EOF.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		cleanHeader(t.res.Trailer)
	}
	return n, err
}

// staysHere reports whether a Set-Cookie is for its own host only, and not the daemon's cookie. One with any Domain
// may be for others: with localhost or the configured domain, for all sandboxes and the daemon. So may one that
// browsers might parse differently, or that has no name: browsers send its value alone, which reads as name=value
// (RFC 6265bis, section 5.7).
func staysHere(cookie string) bool {
	for i := range len(cookie) {
		if c := cookie[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	first := true
	for part := range strings.SplitSeq(cookie, ";") {
		name, _, _ := strings.Cut(part, "=")
		name = strings.TrimSpace(name)
		if first && (name == param || name == "") || !first && strings.EqualFold(name, "Domain") {
			return false
		}
		first = false
	}
	return true
}
