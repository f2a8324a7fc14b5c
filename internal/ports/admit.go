package ports

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// param is the name of our parameter in links, and of our cookie.
const param = "coppice_preview"

// What a request was admitted by.
const (
	byNothing = iota
	byLink    // a token in its query, to be exchanged for a cookie
	byCookie
	byCaller // what Options.Allow knows of the caller
)

// admission is what became of a request.
type admission struct {
	by      int
	sandbox string // id
	expires int64  // of the link or cookie
	expired bool   // it had a link or cookie that was good once
}

// admit decides whether a request may be passed on to the port that its host names.
// tokens are those of its query. Nothing is looked up for who has nothing to show;
// and whether there is such a sandbox is told to nobody who may not use it. An error
// is the engine's.
func (p *Proxy) admit(r *http.Request, key Key, t Target, tokens []string) (admission, error) {
	shown := p.shown(r, key, t.Port, tokens)
	var may func(string) error
	if p.opt.Allow != nil && wanted(r) {
		may = p.opt.Allow(r)
	}
	if len(shown) == 0 && may == nil {
		return admission{}, nil
	}
	id, name, err := p.opt.Engine.Identify(r.Context(), t.Name)
	switch {
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Ambiguous), err == nil && name != t.Name && id != t.Name:
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

// shown gives what a request has of links and cookies to this port, of whatever
// sandbox, that we have signed.
func (p *Proxy) shown(r *http.Request, key Key, port int, tokens []string) (list []admission) {
	now := p.opt.Now()
	if upgrades(r) && !sameOrigin(r) {
		return nil
	}
	by := byLink
	if upgrades(r) {
		by = byCookie // nobody follows a redirection here
	}
	for _, token := range tokens {
		if c, good := key.read(token, forLink, port, now); c != (claim{}) {
			list = append(list, admission{by: by, sandbox: c.sandbox, expires: c.expires, expired: !good})
		}
	}
	// Another host below .localhost may have been able to set one of that name as
	// well.
	for _, cookie := range r.CookiesNamed(param) {
		if c, good := key.read(cookie.Value, forCookie, port, now); c != (claim{}) {
			list = append(list, admission{by: byCookie, sandbox: c.sandbox, expires: c.expires, expired: !good})
		}
	}
	return list
}

// upgrades reports whether a request is for another protocol, as of a WebSocket,
// which browsers let any page open.
func upgrades(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// sameOrigin reports whether a request comes from a page of the host that it goes to,
// or from no page.
func sameOrigin(r *http.Request) bool {
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(u.Host, r.Host) {
			return false
		}
	}
	return true
}

// wanted reports whether a request may be meant by who sent it: pages of other sites
// can make a browser send any, but for showing a page on its own they gain nothing.
// The cookie needs no such question (SameSite).
func wanted(r *http.Request) bool {
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

// takeParam takes our parameter out of a raw query, all of it, and leaves the rest as
// it is.
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

// withoutOurs takes what is the daemon's own out of a header that goes into a
// sandbox: our cookie, our tokens, and where a link was.
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
		// A token of ours has no business anywhere inside.
		for _, v := range values {
			if holdsToken(v) && (name == "Authorization" || name == "Sec-Websocket-Protocol") || name == "Referer" &&
				strings.Contains(v, param) {
				h.Del(name)
				break
			}
		}
	}
}

// tokenPrefix is what the daemon's bearer tokens begin with.
const tokenPrefix = "cpc_"

// holdsToken reports whether a word begins in s as our tokens do. Within a word, as
// of an application's own token, it is chance.
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

// headerSize is how large the head of a request is.
func headerSize(r *http.Request) int {
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}

// clean takes out of an answer what would reach further than its host. It is
// httputil.ReverseProxy.ModifyResponse.
func clean(res *http.Response) error {
	h := res.Header
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
	// They bind a browser to more than this answer: all ports of the name, for long.
	h.Del("Strict-Transport-Security")
	h.Del("Alt-Svc")
	return nil
}

// staysHere reports whether a Set-Cookie is for its own host alone, and is not ours.
// One with a Domain of any kind may be for others: as localhost, for all sandboxes and
// the daemon. What browsers might read otherwise than we do is for others as well.
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
		if first && name == param || !first && strings.EqualFold(name, "Domain") {
			return false
		}
		first = false
	}
	return true
}
