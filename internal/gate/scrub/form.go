package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf16"
)

// Secret is a value to find.
type Secret struct {
	Grant string // its name, for reports
	Value []byte
	// Placeholder replaces the value, in the same form; "" stands for asterisks.
	Placeholder string
}

// leastForm is the length of the shortest text that is searched: a sample and its offsets (see Set), and enough that it
// does not occur by accident.
const leastForm = 12

// form is a text that gives a value away.
type form struct {
	grant    int
	text, in []byte // in replaces text, and is as long
}

// forms returns the forms of a secret, each once. There are none if the value is shorter than leastForm.
func (s Secret) forms(grant int) (all []form) {
	if len(s.Value) < leastForm {
		return nil
	}
	value, instead := encodings(s.Value), encodings([]byte(s.Placeholder))
	for i, text := range value {
		all = add(all, form{grant, text, fit(instead[i], len(text))})
	}
	for i, text := range value[:searchedInRuns] {
		whole := form{grant, text, fit(instead[i], len(text))}
		all = whole.runs(all)
	}
	whole := form{grant, value[0], fit(instead[0], len(value[0]))}
	for _, f := range whole.runs(nil) { // as S3 has the query in its errors
		all = add(all, form{grant, fmt.Appendf(nil, "% x", f.text), fmt.Appendf(nil, "% x", f.in)})
		clear(f.text)
	}
	return all
}

// searchedInRuns is how many of encodings are those that services escape further.
const searchedInRuns = 9

// add adds a form, unless it is too short or all has it.
func add(all []form, one form) []form {
	same := func(f form) bool { return bytes.Equal(f.text, one.text) }
	if len(one.text) < leastForm || containsForm(all, same) {
		return all
	}
	return append(all, one)
}

// runs adds the runs of characters in f that no encoding for URLs, JSON or HTML escapes. Which of the others are
// escaped, and how, differs between services.
func (f form) runs(all []form) []form {
	begin := 0
	for i := range len(f.text) + 1 {
		if i < len(f.text) && unreserved(f.text[i]) {
			continue
		}
		all = add(all, form{f.grant, bytes.Clone(f.text[begin:i]), f.in[begin:i]})
		begin = i + 1
	}
	return all
}

// unreserved reports whether c is unreserved in URLs (RFC 3986, 2.3).
func unreserved(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("-._~", c) >= 0
}

func containsForm(all []form, same func(form) bool) bool {
	for _, f := range all {
		if same(f) {
			return true
		}
	}
	return false
}

// fit returns text with a length of n bytes.
func fit(text []byte, n int) []byte {
	out := bytes.Repeat([]byte("*"), n)
	copy(out, text)
	return out
}

// encodings returns all encodings of b, in an order that does not depend on b.
func encodings(b []byte) [][]byte {
	all := [][]byte{bytes.Clone(b), bytes.ToUpper(b), bytes.ToLower(b)}
	for _, coding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
		for at := range 3 {
			all = append(all, inBase64(coding, b, at))
		}
	}
	text := string(b)
	digits := hex.EncodeToString(b)
	query := url.QueryEscape(text)
	path := url.PathEscape(text)
	quoted, plain := inJSON(text)
	for _, s := range []string{digits, strings.ToUpper(digits), query, lowerEscapes(query), path, lowerEscapes(path),
		allEscaped(digits), allEscaped(strings.ToUpper(digits)), quoted, plain, strings.ReplaceAll(plain, "/", `\/`),
		unicodeEscapes(text, "%04x"), unicodeEscapes(text, "%04X"), fmt.Sprintf("% x", b), fmt.Sprintf("% X", b)} {
		all = append(all, []byte(s))
	}
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		var wide []byte
		for _, unit := range utf16.Encode([]rune(text)) {
			wide = order.AppendUint16(wide, unit)
		}
		all = append(all, wide)
	}
	return all
}

// inBase64 returns the characters of an encoding that depend on b alone, if b begins at a byte of a group.
func inBase64(coding *base64.Encoding, b []byte, at int) []byte {
	whole := coding.WithPadding(base64.NoPadding).EncodeToString(append(make([]byte, at), b...))
	first := (at*8 + 5) / 6 // characters before it are of the bytes before b, in part
	last := (at + len(b)) * 8 / 6
	return []byte(whole[min(first, last):last])
}

// inJSON returns text as a string of JSON without its quotes: with the escapes for HTML, and without.
func inJSON(text string) (html, plain string) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	trim := func() string {
		s := strings.TrimSuffix(b.String(), "\n")
		b.Reset()
		return s[1 : len(s)-1]
	}
	_ = e.Encode(text) // a string and a buffer do not fail
	html = trim()
	e.SetEscapeHTML(false)
	_ = e.Encode(text)
	return html, trim()
}

// unicodeEscapes returns text as a string of JSON in which each character is escaped, with digits by a format.
func unicodeEscapes(text, digits string) string {
	var b strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		fmt.Fprintf(&b, `\u`+digits, unit)
	}
	return b.String()
}

// lowerEscapes writes the digits of percent-encoding in lower case.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
			i += 2
		}
	}
	return string(b)
}

// allEscaped returns hexadecimal digits as percent-encoded bytes.
func allEscaped(digits string) string {
	var b strings.Builder
	for i := 0; i < len(digits); i += 2 {
		b.WriteString("%" + digits[i:i+2])
	}
	return b.String()
}
