package inject

import (
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/grant"
)

// Fits reports whether the body of a request can have the site s, by its head. It fails if a body that may have it
// cannot be searched.
func Fits(r *http.Request, s grant.Site) (bool, error) {
	types := r.Header["Content-Type"]
	if r.Body == nil || r.Body == http.NoBody || len(types) == 0 {
		return false, nil
	}
	for name := range r.Header { // which many servers read like - (RFC 3875, 4.1.18)
		if low := strings.ToLower(name); low == "content_type" || low == "content_encoding" {
			return false, errors.New("the request has header " + low)
		}
	}
	if len(types) > 1 {
		return false, errors.New("the request has several types of its body")
	}
	name, params, err := mime.ParseMediaType(types[0])
	if err != nil {
		return false, errors.New("the type of the body is malformed")
	}
	is := name == "application/x-www-form-urlencoded"
	if s.In == grant.InJSON {
		is = name == "application/json" || strings.HasPrefix(name, "application/") && strings.HasSuffix(name, "+json")
	}
	coding := strings.ToLower(strings.Join(r.Header["Content-Encoding"], ","))
	switch charset := params["charset"]; {
	case !is:
		return false, nil
	case coding != "" && coding != "identity":
		return false, errors.New("the body is compressed, and cannot be searched for its placeholder")
	case charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii"):
		return false, errors.New("the body is not in UTF-8")
	}
	return true, nil
}

// IntoBody returns body with value at the site of p, if one of its placeholders is all that stands there. All other
// bytes stay as they are. If it fails, body must not be sent.
func IntoBody(body []byte, p grant.Put, value []byte) (out []byte, found bool, err error) {
	if len(value) == 0 {
		return nil, false, errors.New("its value is empty")
	}
	var begin, end int
	var text, put string
	if p.Site.In == grant.InJSON {
		if !utf8.Valid(value) {
			return nil, false, errors.New("its value is not in UTF-8, as JSON must be")
		}
		if begin, end, text, err = findJSON(body, p.Site.Pointer); err == nil {
			put, err = quoted(string(value))
		}
	} else if begin, end, text, err = findForm(string(body), p.Site.Name); err == nil {
		put = url.QueryEscape(string(value))
	}
	if err != nil || end == 0 || text == "" || !slices.Contains(p.Placeholders, text) {
		return body, false, err
	}
	return slices.Concat(body[:begin], []byte(put), body[end:]), true, nil
}

// findForm returns where the value of a field is in a form, and its text. An end of 0 means that there is none.
func findForm(form, name string) (begin, end int, text string, err error) {
	at := 0
	for pair := range strings.SplitSeq(form, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, kerr := url.QueryUnescape(k)
		value, verr := url.QueryUnescape(v)
		if kerr != nil || verr != nil {
			return 0, 0, "", errors.New("the escapes in the form are invalid")
		}
		if key == "_method" {
			return 0, 0, "", errors.New("the form names another method in _method")
		}
		if key == name {
			if end > 0 {
				return 0, 0, "", errors.New("the form has several fields " + name)
			}
			end = at + len(pair)
			begin, text = end-len(v), value
		}
		at += len(pair) + 1
	}
	return begin, end, text, nil
}
