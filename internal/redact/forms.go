package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
)

// form is one way in which a secret may be written.
type form struct {
	text        string
	left, right bool // the neighbouring byte carries bits of the secret, in base64
}

// minLine is the minimum length of a line of a secret that is searched separately.
const minLine = 20

// forms returns the forms in which value, which has no white space around it, is searched. The search ignores case.
func forms(value string) []form {
	var all []form
	for _, text := range append([]string{value}, lines(value)...) {
		all = append(all, form{text: text}, form{text: hex.EncodeToString([]byte(text))})
		for _, text := range escaped(text) {
			all = append(all, form{text: text})
		}
		for offset := range 3 {
			f := inBase64(text, offset)
			all = append(all, f, form{strings.NewReplacer("+", "-", "/", "_").Replace(f.text), f.left, f.right})
		}
	}
	return all
}

// lines returns, for a value of several lines, the longer lines without those that fence a PEM block, and the whole
// value as terminals and as Windows write it.
func lines(value string) []string {
	if !strings.Contains(value, "\n") {
		return nil
	}
	plain := strings.ReplaceAll(value, "\r\n", "\n")
	all := []string{plain, strings.ReplaceAll(plain, "\n", "\r\n")}
	for line := range strings.SplitSeq(plain, "\n") {
		if line = strings.TrimSpace(line); len(line) >= minLine && !strings.HasPrefix(line, "-----") {
			all = append(all, line)
		}
	}
	return all
}

// escaped returns the forms in URLs and in JSON, escaped once and twice.
func escaped(text string) []string {
	query := url.QueryEscape(text)
	all := []string{
		query,
		strings.ReplaceAll(query, "+", "%20"),
		url.PathEscape(text),
		// encodeURIComponent
		strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*", "+", "%20").Replace(query),
		strings.ReplaceAll(text, "/", `\/`),
	}
	for _, quoted := range []string{inJSON(text, false), inJSON(text, true)} {
		all = append(all, quoted, ascii(quoted), inJSON(quoted, false))
	}
	return all
}

func inJSON(text string, html bool) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(text) != nil { // never, of a string
		return text
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(b.String(), "\n"), `"`), `"`)
}

// ascii returns JSON as written by encoders that escape all non-ASCII characters.
func ascii(quoted string) string {
	var b strings.Builder
	const digits = "0123456789abcdef"
	unit := func(u rune) {
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte(digits[u>>shift&0xf])
		}
	}
	for _, c := range quoted {
		switch {
		case c < 0x80:
			b.WriteRune(c)
		case c > 0xffff:
			unit(0xd800 + (c-0x10000)>>10)
			unit(0xdc00 + (c-0x10000)&0x3ff)
		default:
			unit(c)
		}
	}
	return b.String()
}

// inBase64 returns the part of text's encoding that does not depend on the surrounding bytes, if offset bytes, modulo
// three, come before it and anything after. A character has six bits: those that text shares with its neighbours are
// left out, and reported in the form.
func inBase64(text string, offset int) form {
	whole := base64.RawStdEncoding.EncodeToString(append(make([]byte, offset), text...))
	bits := 8 * (offset + len(text))
	from, to := (8*offset+5)/6, bits/6
	return form{text: whole[from:to], left: 8*offset%6 != 0, right: bits%6 != 0}
}
