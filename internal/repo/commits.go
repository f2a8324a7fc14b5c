package repo

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Trailer is a line at the end of a message, as "Co-authored-by: Name <address>".
type Trailer struct{ Key, Value string }

// message appends trailers to a message.
func message(text string, trailers []Trailer) (string, error) {
	text = strings.TrimSpace(text)
	if text == "" || strings.IndexByte(text, 0) >= 0 {
		return "", fault.New(fault.Invalid, "invalid message: must not be empty or contain NUL").WithHint("set one: -m TEXT")
	}
	var b strings.Builder
	b.WriteString(text + "\n")
	for i, t := range trailers {
		if t.Key == "" || strings.Trim(t.Key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-") != "" ||
			t.Value == "" || t.Value != printable(t.Value) {
			return "", fault.New(fault.Invalid, "invalid trailer %q: must be a single line", clip(t.Key+": "+t.Value))
		}
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s: %s\n", t.Key, t.Value)
	}
	return b.String(), nil
}

// signature formats a person and a time as in a commit object.
func signature(p Person, unix int64) string {
	return fmt.Sprintf("%s <%s> %d +0000", p.Name, p.Email, unix)
}

// commitObject returns the content of a commit.
func commitObject(tree OID, parents []OID, author, committer, text string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "tree %s\n", tree)
	for _, p := range parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s", author, committer, text)
	return b.Bytes()
}

// rewrite replaces tree, parent and committer of a commit. Author, author time, encoding and message are kept;
// signatures, which would be invalid, are dropped.
func rewrite(raw []byte, tree, parent OID, committer string) ([]byte, error) {
	head, text, found := strings.Cut(string(raw), "\n\n")
	author, encoding := "", ""
	for l := range strings.SplitSeq(head, "\n") {
		if strings.HasPrefix(l, "author ") && author == "" {
			author = l
		}
		if strings.HasPrefix(l, "encoding ") && encoding == "" {
			encoding = "\n" + l
		}
	}
	if !found || author == "" {
		return nil, fault.New(fault.Invalid, "malformed commit: no author or no message")
	}
	return fmt.Appendf(nil, "tree %s\nparent %s\n%s\ncommitter %s%s\n\n%s", tree, parent, author, committer,
		encoding, text), nil
}

// author parses the person of a signature.
func author(signature string) (Person, bool) {
	name, rest, ok := strings.Cut(signature, " <")
	email, _, ok2 := strings.Cut(rest, ">")
	return Person{name, email}, ok && ok2
}
