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

// allows reports whether a request meets r's conditions.
func (r Rule) allows(q *HTTPRequest) bool {
	if r.Methods != nil && !slices.Contains(r.Methods, q.Method) {
		return false
	}
	if r.Query != nil && !r.allowsQuery(q.Query) {
		return false
	}
	path, ok := cleanPath(q.Path)
	return r.Paths == nil || ok && slices.ContainsFunc(r.Paths, func(p string) bool {
		below, all := strings.CutSuffix(p, "*")
		return p == path || all && strings.HasPrefix(path, below)
	})
}

// allowsQuery reports whether r has every key of a query with the same value, and each key is there once.
func (r Rule) allowsQuery(raw string) bool {
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

// forbids reports whether a request meets r's conditions in any spelling: some servers ignore case, or a trailing
// slash.
func (r Rule) forbids(q *HTTPRequest) bool {
	if r.Methods != nil && !slices.ContainsFunc(r.Methods, func(m string) bool { return strings.EqualFold(m, q.Method) }) {
		return false
	}
	path, ok := cleanPath(q.Path)
	path = strings.TrimSuffix(path, "/") + "/"
	return r.Paths == nil || !ok || slices.ContainsFunc(r.Paths, func(p string) bool {
		below, all := strings.CutSuffix(p, "*")
		below = strings.TrimSuffix(below, "/") + "/"
		return strings.EqualFold(path, below) || all && len(path) >= len(below) && strings.EqualFold(path[:len(below)], below)
	})
}
