package ports

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// param is the name of the parameter in links, and of the cookie.
const param = "coppice_preview"

// How a request was admitted.
const (
	byNothing = iota
	byLink    // by a token in its query, which is exchanged for a cookie
	byCookie
	byCaller // by Options.Allow
)

// admission is the decision about a request.
type admission struct {
	by      int
	sandbox string // id
	expires int64  // of the link or cookie
	expired bool   // it had a link or cookie that has expired
}

// admit decides whether a request may be forwarded to the port of its host. tokens are those of its query. Without
// credentials no sandbox is looked up, and a caller without access does not learn whether the sandbox exists. An error
// is the engine's.
func (p *Proxy) admit(r *http.Request, key Key, t Target, tokens []string) (admission, error) {
	shown := p.credentials(r, key, t.Port, tokens)
	var may func(string) error
	if p.opt.Allow != nil && intended(r) {
		may = p.opt.Allow(r)
	}
	if len(shown) == 0 && may == nil {
		return admission{}, nil
	}
	id, name, err := p.opt.Engine.Identify(r.Context(), t.ID)
	switch {
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Ambiguous), err == nil && !t.IsHostOf(name, id):
		return admission{}, nil
	case err != nil:
		return admission{}, err
	}
	expired := false
	for _, a := range shown {
		switch {
		case a.sandbox != id:
		case a.expired:
			expired = true
		default:
			return a, nil
		}
	}
	if may != nil && may(id) == nil {
		return admission{by: byCaller, sandbox: id}, nil
	}
	return admission{expired: expired}, nil
}

// credentials returns the genuine links and cookies of a request for this port, of any sandbox, including expired ones.
func (p *Proxy) credentials(r *http.Request, key Key, port int, tokens []string) (list []admission) {
	now := p.opt.Now()
	if upgrades(r) && !sameOrigin(r) {
		return nil
	}
	by := byLink
	if upgrades(r) {
		by = byCookie // clients that upgrade do not follow redirects
	}
	for _, token := range tokens {
		if c, good := key.read(token, forLink, port, now); c != (claim{}) {
			list = append(list, admission{by: by, sandbox: c.sandbox, expires: c.expires, expired: !good})
		}
	}
	// Below a domain, the pages of other sandboxes are of the same site, where SameSite does not help.
	if !upgrades(r) && !intended(r) {
		return list
	}
	// Another host below the same domain may have set a cookie of the same name, so check all of them.
	for _, cookie := range r.CookiesNamed(param) {
		if c, good := key.read(cookie.Value, forCookie, port, now); c != (claim{}) {
			list = append(list, admission{by: byCookie, sandbox: c.sandbox, expires: c.expires, expired: !good})
		}
	}
	return list
}

// upgrades reports whether a request is for another protocol, such as a WebSocket, which browsers let any page open.
func upgrades(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// sameOrigin reports whether a request comes from a page of its own host, or from no page.
func sameOrigin(r *http.Request) bool {
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	return true
}

// intended reports whether a request may be intentional: pages of other sites can make a browser send any, but gain
// nothing from plain navigation.
func intended(r *http.Request) bool {
	if !sameOrigin(r) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
}

// takeParam removes every occurrence of the parameter from a raw query, and leaves the rest unchanged.
func takeParam(query string) (tokens []string, rest string) {
	if !strings.Contains(query, "=") {
		return nil, query
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		if name, err := url.QueryUnescape(key); err != nil || name != param {
			kept = append(kept, part)
			continue
		}
		if token, err := url.QueryUnescape(value); err == nil {
			tokens = append(tokens, token)
		}
	}
	return tokens, strings.Join(kept, "&")
}

// withoutOurs removes what belongs to the daemon from a header to a sandbox: its cookie, its tokens, and the
// parameter of links.
func withoutOurs(h http.Header) {
	var cookies []string
	for _, line := range h.Values("Cookie") {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			if name, _, _ := strings.Cut(part, "="); part != "" && strings.TrimSpace(name) != param {
				cookies = append(cookies, part)
			}
		}
	}
	h.Del("Cookie")
	if cookies != nil {
		h.Set("Cookie", strings.Join(cookies, "; "))
	}
	for name, values := range h {
		// The daemon's tokens must never reach a sandbox.
		for _, v := range values {
			if holdsToken(v) && (name == "Authorization" || name == "Sec-Websocket-Protocol") || name == "Referer" &&
				strings.Contains(v, param) {
				h.Del(name)
				break
			}
		}
	}
}

// tokenPrefix is the prefix of the daemon's bearer tokens.
const tokenPrefix = "cpc_"

// holdsToken reports whether a word in s has the prefix of the daemon's tokens. Inside a word, as in an application's
// own token, it is a coincidence.
func holdsToken(s string) bool {
	for rest := s; ; {
		before, after, found := strings.Cut(rest, tokenPrefix)
		if !found {
			return false
		}
		at := len(s) - len(rest) + len(before)
		if at == 0 || !inToken(s[at-1]) {
			return true
		}
		rest = after
	}
}

// inToken reports whether a byte can be in a token.
func inToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}

// headerSize returns the size of the head of a request, in bytes.
func headerSize(r *http.Request) int {
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
