package grant

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Use is a request that may carry secrets, before it leaves.
type Use struct {
	// Host is the host that the connection outside was verified for, never what a header names.
	Host   policy.Host
	Port   uint16
	TLS    bool // on both sides of the gate
	HTTP   policy.HTTPRequest
	Header http.Header // Host is not in it
}

// field is a text in the head of a request, as its receiver decodes it.
type field struct {
	in   In     // InHeader, InBasic, InQuery, InPath or InCookie
	name string // of a header, in canonical form; of a key or cookie; "user" or "password"
	text string
	// odd is why receivers may disagree about the field, or "".
	odd string
}

// String describes the place of f for users.
func (f field) String() string {
	switch f.in {
	case InPath:
		return "the path"
	case InBasic:
		return "the " + f.name + " of header Authorization"
	}
	return string(f.in) + " " + f.name
}

const several = "there are several"

// fields returns all texts of the head of u. A text that is encoded in another way is not among them: what nothing here
// decodes, nothing replaces.
func (u Use) fields() (all []field) {
	headers := map[string][]string{}
	for name, values := range u.Header {
		name = textproto.CanonicalMIMEHeaderKey(name)
		headers[name] = append(headers[name], values...)
	}
	for name, values := range headers {
		odd := ""
		if len(values) > 1 {
			odd = several
		}
		for _, v := range values {
			if name == "Cookie" {
				all = append(all, cookies(v)...)
				continue
			}
			all = append(all, field{InHeader, name, v, odd})
			if name == "Authorization" {
				all = append(all, basic(v, odd)...)
			}
		}
	}
	for part := range strings.SplitSeq(u.HTTP.Path, "/") {
		f := field{in: InPath, text: part}
		if text, err := url.PathUnescape(part); err == nil && text != part {
			f.text, f.odd = text, "it is escaped"
		}
		all = append(all, f)
	}
	all = append(all, query(u.HTTP.Query)...)
	count := map[string]int{}
	for _, f := range all {
		count[f.String()]++
	}
	for i, f := range all {
		if (f.in == InQuery || f.in == InCookie) && f.odd == "" && count[f.String()] > 1 {
			all[i].odd = several
		}
	}
	return all
}

// cookies returns the cookies of a header.
func cookies(header string) (all []field) {
	for pair := range strings.SplitSeq(header, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		all = append(all, field{in: InCookie, name: name, text: value})
	}
	return all
}

// query returns the keys and values of a query.
func query(raw string) (all []field) {
	odd := ""
	if strings.Contains(raw, ";") {
		odd = "the query has a semicolon"
	}
	for pair := range strings.SplitSeq(raw, "&") {
		k, v, _ := strings.Cut(pair, "=")
		key, kodd := unescaped(k)
		value, vodd := unescaped(v)
		all = append(all, field{InQuery, key, value, cmp.Or(odd, kodd, vodd)}, field{InQuery, "(key)", key, "it is a key"})
	}
	return all
}

// unescaped returns a text of a query without escapes, or as it is with what is odd about it.
func unescaped(text string) (plain, odd string) {
	plain, err := url.QueryUnescape(text)
	if err != nil {
		return text, "its escapes are invalid"
	}
	return plain, ""
}

// basic returns the user and the password in the value of header Authorization.
func basic(value, odd string) []field {
	at := strings.IndexAny(value, " \t")
	if at < 0 || !strings.EqualFold(value[:at], "Basic") {
		return nil
	}
	scheme, coded := value[:at], value[at+1:]
	if !spelt(scheme, "Basic") {
		odd = "the scheme is spelt " + scheme
	}
	b, err := base64.StdEncoding.Strict().DecodeString(coded)
	if err != nil || value[at] != ' ' || strings.ContainsAny(coded, "\r\n") {
		odd, b = "the encoding is invalid", loose(coded)
	}
	user, password, _ := strings.Cut(string(b), ":")
	return []field{{InBasic, "user", user, odd}, {InBasic, "password", password, odd}}
}

// loose decodes base64 as servers do that skip what is not of its alphabet, and take that of URLs too.
func loose(coded string) []byte {
	coded = strings.Map(func(r rune) rune {
		switch {
		case r == '-':
			return '+'
		case r == '_':
			return '/'
		case r < 0x80 && strings.ContainsRune(Base64.letters(), r):
			return r
		}
		return -1
	}, coded)
	if len(coded)%4 == 1 {
		coded = coded[:len(coded)-1]
	}
	b, err := base64.RawStdEncoding.DecodeString(coded)
	if err != nil {
		return nil
	}
	return b
}

// spelt reports whether word is a scheme in a usual spelling. Schemes ignore case (RFC 9110), but not all servers do.
func spelt(word, scheme string) bool {
	small := strings.ToLower(scheme)
	title := strings.ToUpper(small[:1]) + small[1:]
	return word == scheme || word == small || word == title || word == strings.ToUpper(scheme)
}

// takes reports whether the placeholder in f may be replaced as site s says. needle is what was found.
func (s Site) takes(u Use, f field, needle string) bool {
	if f.odd != "" || !s.At.Allow(&u.HTTP) {
		return false
	}
	switch s.In {
	case InHeader, InBearer:
		if f.in != InHeader || f.name != s.Name {
			return false
		}
		if s.Part == "" {
			return f.text == needle
		}
		word, rest, _ := strings.Cut(f.text, " ")
		return spelt(word, s.Part) && rest == needle
	case InGit:
		return git(u.HTTP) && f.in == InBasic && f.name == s.Part && f.text == needle
	case InBasic, InQuery, InCookie:
		return f.in == s.In && f.name == s.place() && f.text == needle
	case InPath:
		return f.in == InPath && f.text == needle
	case InSigV4:
		is, _ := s.signs(u, f, needle)
		return is
	}
	return false
}

// place returns the field.name that the secret stands in.
func (s Site) place() string {
	if s.In == InBasic {
		return s.Part
	}
	return s.Name
}

// holds reports whether f is where a secret or another credential of site s stands.
func (s Site) holds(f field) bool {
	if s.In == InQuery || s.In == InCookie {
		return f.in == s.In && f.name == s.Name
	}
	name, ok := strings.CutPrefix(s.room(), "header:")
	return ok && f.in == InHeader && f.name == name
}

// overrides reports whether u names another method in its query, which some frameworks obey. The gate refuses headers
// that do.
func (u Use) overrides() bool {
	return slices.ContainsFunc(query(u.HTTP.Query), func(f field) bool { return f.name == "_method" })
}

// bare returns the request of u without the format that some frameworks read from the end of a path, such as .json. A
// path that cannot be unescaped is denied as it is.
func (u Use) bare() *policy.HTTPRequest {
	q := u.HTTP
	path, err := url.PathUnescape(q.Path)
	path = strings.TrimSuffix(path, "/")
	at := strings.LastIndexByte(path, '/') + 1
	if name, _, ok := strings.Cut(path[at:], "."); err == nil && ok && name != "" {
		q.Path = path[:at] + name
	}
	return &q
}

// git reports whether q is a request of git over HTTP (gitprotocol-http), or of Git LFS.
func git(q policy.HTTPRequest) bool {
	switch {
	case q.Method == http.MethodGet && strings.HasSuffix(q.Path, "/info/refs"):
		return q.Query == "service=git-upload-pack" || q.Query == "service=git-receive-pack"
	case q.Method == http.MethodPost:
		return strings.HasSuffix(q.Path, "/git-upload-pack") || strings.HasSuffix(q.Path, "/git-receive-pack") ||
			strings.HasSuffix(q.Path, "/info/lfs/objects/batch") || strings.HasSuffix(q.Path, "/info/lfs/locks/verify")
	}
	return false
}
