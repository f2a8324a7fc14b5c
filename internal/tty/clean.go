package tty

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// harmless reports whether a terminal shows r and does nothing else. Characters
// that turn the direction of writing around are not: they make text look like
// other text.
func harmless(r rune) bool {
	return r != utf8.RuneError && unicode.IsPrint(r) && !unicode.Is(unicode.Bidi_Control, r)
}

func escape(b *strings.Builder, s string, size int, r rune) {
	switch {
	case r == utf8.RuneError && size == 1, r < 0x20, r == 0x7f:
		switch s[0] {
		case '\n':
			b.WriteString(`\n`)
		case '\t':
			b.WriteString(`\t`)
		case '\r':
			b.WriteString(`\r`)
		default:
			fmt.Fprintf(b, `\%03o`, s[0])
		}
	case r <= 0xffff:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

// Clean makes one line of text from a sandbox harmless: control bytes, newlines
// and bytes that are not UTF-8 are written as escapes.
func Clean(s string) string {
	i := 0
	for i < len(s) && s[i] >= 0x20 && s[i] < 0x7f {
		i++
	}
	if i == len(s) {
		return s
	}
	var b strings.Builder
	b.WriteString(s[:i])
	for s = s[i:]; s != ""; {
		r, n := utf8.DecodeRuneInString(s)
		if harmless(r) {
			b.WriteString(s[:n])
		} else {
			escape(&b, s, n, r)
		}
		s = s[n:]
	}
	return b.String()
}

// Quote writes a path as git does: as it is when it is plain, else in double
// quotes with escapes, so that it is one line and can be told from others.
func Quote(path string) string {
	c := Clean(path)
	if c == path && !strings.ContainsAny(path, `"\`) && path != "" && strings.TrimSpace(path) == path {
		return path
	}
	var b strings.Builder
	b.WriteByte('"')
	for s := path; s != ""; {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case harmless(r):
			b.WriteString(s[:n])
		default:
			escape(&b, s, n, r)
		}
		s = s[n:]
	}
	b.WriteByte('"')
	return b.String()
}

// Cut shortens text to that many characters; 0 or less leaves it.
func Cut(s string, cols int) string {
	if cols <= 0 || utf8.RuneCountInString(s) <= cols {
		return s
	}
	if cols <= 3 {
		return strings.Repeat(".", cols)
	}
	r := []rune(s)
	return string(r[:cols-3]) + "..."
}

// Cleaner is a writer that makes what passes harmless, line by line: newlines
// and tabs stay.
func Cleaner(w io.Writer) io.Writer { return &cleaner{w: w} }

type cleaner struct {
	w    io.Writer
	rest []byte // an unfinished character
}

func (c *cleaner) Write(p []byte) (int, error) {
	text := append(c.rest, p...)
	n := len(text)
	// Keep back what may be the beginning of a character.
	for k := 1; k < utf8.UTFMax && k <= len(text); k++ {
		if utf8.RuneStart(text[len(text)-k]) {
			if !utf8.FullRune(text[len(text)-k:]) {
				n = len(text) - k
			}
			break
		}
	}
	var b strings.Builder
	for s := string(text[:n]); s != ""; {
		r, size := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' || harmless(r) {
			b.WriteString(s[:size])
		} else {
			escape(&b, s, size, r)
		}
		s = s[size:]
	}
	c.rest = append([]byte(nil), text[n:]...)
	if _, err := io.WriteString(c.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
