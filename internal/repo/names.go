package repo

import (
	"encoding/hex"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/visible"
)

// OID is the ID of an object: 40 (SHA-1) or 64 (SHA-256) lower-case hex digits. The zero value means no object.
type OID string

// ParseOID parses a full object ID. It refuses abbreviations and the null ID.
func ParseOID(s string) (OID, error) {
	raw, err := hex.DecodeString(s)
	switch {
	case err != nil, len(raw) != 20 && len(raw) != 32, strings.ToLower(s) != s, strings.Trim(s, "0") == "":
		return "", fault.New(fault.Invalid, "invalid object name %q", clip(s))
	}
	return OID(s), nil
}

// orNull returns the null ID for "".
func (o OID) orNull(f Format) OID {
	if o == "" {
		return OID(strings.Repeat("0", f.digits()))
	}
	return o
}

// Format is the object format of a repository: "sha1" or "sha256".
type Format string

// The object formats of git.
const (
	SHA1   Format = "sha1"
	SHA256 Format = "sha256"
)

// digits returns the number of hex digits of an object ID.
func (f Format) digits() int {
	if f == SHA256 {
		return 64
	}
	return 40
}

// maxRef is the maximum length of the name of a reference, in bytes.
const maxRef = 200

// Ref is the validated full name of a reference: it begins with "refs/".
type Ref string

// ParseRef validates the full name of a reference. It is stricter than git: it also refuses what a terminal or a
// command line could misinterpret: invalid UTF-8, unprintable characters, components with a leading dash.
func ParseRef(s string) (Ref, error) {
	if why := badRef(s); why != "" {
		return "", fault.New(fault.Invalid, "invalid reference name %q: %s", clip(s), why)
	}
	return Ref(s), nil
}

// ParseBranch returns the reference of a branch by its short name.
func ParseBranch(short string) (Ref, error) {
	if short == "HEAD" || strings.HasPrefix(short, "refs/") {
		return "", fault.New(fault.Invalid, "invalid branch name %q", clip(short)).
			WithHint("use a name like coppice/fix-auth")
	}
	return ParseRef("refs/heads/" + short)
}

// Short returns the name without refs/heads/.
func (r Ref) Short() string { return strings.TrimPrefix(string(r), "refs/heads/") }

// badRef returns what is wrong with the full name of a reference, or "".
func badRef(s string) string {
	switch {
	case len(s) > maxRef:
		return "too long"
	case !utf8.ValidString(s):
		return "must be UTF-8"
	case !strings.HasPrefix(s, "refs/"):
		return "must begin with refs/"
	case strings.Contains(s, ".."), strings.Contains(s, "@{"), strings.HasSuffix(s, "."):
		return "has dots or braces that are special to git"
	case strings.ContainsAny(s, " ~^:?*[\\"):
		return "has a character that is special to git"
	}
	for _, r := range s {
		if !visible.Rune(r) {
			return "has a character that is not printable"
		}
	}
	parts := strings.Split(s, "/")
	if len(parts) < 3 {
		return "must have at least two components below refs/"
	}
	for _, p := range parts {
		switch {
		case p == "", p == "@":
			return "has an empty component"
		case p[0] == '.', strings.HasSuffix(p, ".lock"), p[0] == '-':
			return "has a component that begins with a dot or dash, or ends with .lock"
		}
	}
	return ""
}

// badPath returns why a path of a tree can never be applied, or "". Paths have slashes, and are relative to the top
// of the work tree.
func badPath(p string) string {
	switch {
	case p == "" || p[0] == '/' || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../"):
		return "not a relative path inside the work tree"
	case len(p) > limit.TreePath:
		return "too long"
	case strings.IndexByte(p, 0) >= 0:
		return "contains NUL"
	}
	for part := range strings.SplitSeq(p, "/") {
		if why := badName(part); why != "" {
			return why
		}
	}
	return ""
}

// badName returns why a name cannot be part of a path that is applied; "" if it can.
func badName(name string) string {
	switch {
	case len(name) > 255:
		return "has a name that is too long"
	case isDotGit(name):
		return "is git's own directory, or equivalent to it on some file systems"
	}
	return ""
}

// CheckPath returns Invalid if a path of a tree, with slashes and relative to the top, can never be applied.
func CheckPath(p string) error {
	if why := badPath(p); why != "" {
		return fault.New(fault.Invalid, "cannot apply path %q: %s", clip(p), why).
			WithHint("use a path relative to the top of the work tree, such as src/main.go")
	}
	return nil
}

// Person is an author or a committer.
type Person struct{ Name, Email string }

// ParsePerson parses "NAME <ADDRESS>".
func ParsePerson(s string) (Person, error) {
	name, rest, ok := strings.Cut(s, "<")
	email, end, closed := strings.Cut(rest, ">")
	p := Person{strings.TrimSpace(name), strings.TrimSpace(email)}
	if why := p.bad(); why != "" || !ok || !closed || strings.TrimSpace(end) != "" {
		return Person{}, fault.New(fault.Invalid, "invalid person %q: must be NAME <ADDRESS>", clip(s)).
			WithHint("for example: Ada Lovelace <ada@example.org>")
	}
	return p, nil
}

// bad returns why git could not store the person, or "".
func (p Person) bad() string {
	for _, s := range []string{p.Name, p.Email} {
		if strings.ContainsFunc(s,
			func(r rune) bool { return r < ' ' || r == 0x7f || r == '<' || r == '>' || r == utf8.RuneError }) {
			return "has a control character, < or >"
		}
		if strings.Trim(s, " .,:;\"'") == "" {
			return "the name or the address is empty"
		}
		if len(s) > 500 {
			return "too long"
		}
	}
	return ""
}

// clip shortens untrusted text for a message.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "..."
	}
	return s
}

// printable replaces invisible characters in untrusted text, such as names in git's messages.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !visible.Rune(r):
			return '?'
		}
		return r
	}, s)
	return strings.TrimSpace(s)
}
