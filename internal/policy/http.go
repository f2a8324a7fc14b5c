package policy

import (
	"net/url"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// HTTPRequest is the part of a request that rules can match, as sent: the path is still escaped, and the query has no
// question mark.
type HTTPRequest struct {
	Method string
	Path   string
	Query  string
}

// parseMethod parses the name of a method.
func parseMethod(s string) (string, error) {
	if s == "" || len(s) > 32 || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "" {
		return "", fault.New(fault.Invalid, "invalid method %q", s).WithHint("use upper case, such as GET")
	}
	return s, nil
}

// parsePath parses the path of a rule: "/a/b", or "/a/*" for all paths below /a.
func parsePath(s string) (string, error) {
	fixed := strings.TrimSuffix(s, "*")
	clean, ok := cleanPath(fixed)
	switch {
	case !ok || clean != fixed, strings.ContainsAny(fixed, "*?#%"), fixed != s && !strings.HasSuffix(fixed, "/"):
		return "", fault.New(fault.Invalid, "invalid path %q", s).
			WithHint("use a path without escapes, such as /v1/items, or /v1/* for all below /v1")
	}
	return s, nil
}

// cleanPath unescapes a path. ok is false if two servers could interpret it as different paths; then no rule allows it.
func cleanPath(raw string) (path string, ok bool) {
	path, err := url.PathUnescape(raw)
	if err != nil || !strings.HasPrefix(path, "/") || strings.Count(path, "/") != strings.Count(raw, "/") {
		return "", false
	}
	if _, err := url.PathUnescape(path); err != nil || strings.Contains(path, "%") {
		return "", false // escaped twice
	}
	for _, r := range path {
		if r < 0x20 || r == 0x7f || r == '\\' || r == ';' || r == '\ufffd' {
			return "", false
		}
	}
	segments := strings.Split(path[1:], "/")
	for i, s := range segments {
		if s == "." || s == ".." || s == "" && i < len(segments)-1 {
			return "", false
		}
	}
	return path, true
}

// Requests matches HTTP requests to a host. A nil field matches everything; the zero Requests matches every request.
type Requests struct {
	Methods []string
	// Paths are patterns: "/a", or "/a/*" for all paths below /a. A * in the middle, as in "/a/*/b", matches one part.
	Paths []string
	Query map[string]string // allowed keys, with their values; "*" is any value
}

// ParseRequests parses methods, and patterns of paths in the form of Requests. In a rule, a * is only valid at the end.
func ParseRequests(methods, paths []string) (q Requests, err error) {
	for _, m := range methods {
		if m, err = parseMethod(m); err != nil {
			return Requests{}, err
		}
		q.Methods = append(q.Methods, m)
	}
	for _, p := range paths {
		parts := strings.Split(p, "/")
		for i, part := range parts {
			if part == "*" && i < len(parts)-1 {
				parts[i] = "any"
			}
		}
		if _, err = parsePath(strings.Join(parts, "/")); err != nil {
			return Requests{}, fault.New(fault.Invalid, "invalid path %q", p).WithHint("use a path without escapes, " +
				"such as /v1/items, /v1/* for all below /v1, or /v1/*/items, where * is any one part")
		}
		q.Paths = append(q.Paths, p)
	}
	return q, nil
}

// requests returns the conditions of r about HTTP.
func (r Rule) requests() Requests { return Requests{r.Methods, r.Paths, r.Query} }

// allows reports whether a request meets r's conditions.
func (r Rule) allows(q *HTTPRequest) bool { return r.requests().Allow(q) }

// forbids reports whether a request meets r's conditions in any spelling.
func (r Rule) forbids(q *HTTPRequest) bool { return r.requests().Forbid(q) }

// Allow reports whether r, as a list of what is allowed, contains q. A path that two servers could interpret
// differently is in no list of paths.
func (r Requests) Allow(q *HTTPRequest) bool {
	if r.Methods != nil && !slices.Contains(r.Methods, q.Method) || r.Query != nil && !r.allowQuery(q.Query) {
		return false
	}
	path, ok := cleanPath(q.Path)
	return r.Paths == nil || ok && slices.ContainsFunc(r.Paths, func(p string) bool {
		return matches(p, path, func(a, b string) bool { return a == b })
	})
}

// matches reports whether a pattern matches a path, part by part.
func matches(pattern, path string, equal func(a, b string) bool) bool {
	for pattern != "*" {
		want, restWanted, moreWanted := strings.Cut(pattern, "/")
		part, rest, more := strings.Cut(path, "/")
		switch {
		case moreWanted != more, want == "*" && part == "", want != "*" && !equal(want, part):
			return false
		case !more:
			return true
		}
		pattern, path = restWanted, rest
	}
	return true
}

// PathWithin reports whether the pattern o of Requests.Paths matches every path that the pattern p matches.
func PathWithin(p, o string) bool {
	for o != "*" {
		part, rest, more := strings.Cut(p, "/")
		want, restWanted, moreWanted := strings.Cut(o, "/")
		switch {
		case p == "*", more != moreWanted, want == "*" && part == "", want != "*" && want != part:
			return false
		case !more:
			return true
		}
		p, o = rest, restWanted
	}
	return true
}

// allowQuery reports whether r has every key of a query with the same value, and each key is there once.
func (r Requests) allowQuery(raw string) bool {
	if raw == "" {
		return true
	}
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(raw, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(k)
		value, verr := url.QueryUnescape(v)
		want, known := r.Query[key]
		if err != nil || verr != nil || strings.Contains(pair, ";") || !known || seen[key] || want != "*" && want != value {
			return false
		}
		seen[key] = true
	}
	return true
}

// Forbid reports whether r, as a list of what is denied, may contain q in any spelling: some servers ignore case, or a
// trailing slash. A path that two servers could interpret differently is in every list of paths. It ignores r.Query.
func (r Requests) Forbid(q *HTTPRequest) bool {
	if r.Methods != nil && !slices.ContainsFunc(r.Methods, func(m string) bool { return strings.EqualFold(m, q.Method) }) {
		return false
	}
	path, ok := cleanPath(q.Path)
	path = strings.TrimSuffix(path, "/") + "/"
	return r.Paths == nil || !ok || slices.ContainsFunc(r.Paths, func(p string) bool {
		if !strings.HasSuffix(p, "*") {
			p = strings.TrimSuffix(p, "/") + "/"
		}
		return matches(p, path, strings.EqualFold)
	})
}
