package tty

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/internal/visible"
)

// Clean escapes one line of text from a sandbox, as visible.Clean does.
func Clean(s string) string { return visible.Clean(s) }

// Quote formats a path as git does: unchanged if it is plain, else in double quotes with escapes, so that it
// is one unambiguous line.
func Quote(path string) string {
	c := Clean(path)
	if c == path && !strings.ContainsAny(path, `"\`) && path != "" && strings.TrimSpace(path) == path {
		return path
	}
	var b strings.Builder
	b.WriteByte('"')
	var line visible.Line
	for s := path; s != ""; {
		if s[0] == '"' || s[0] == '\\' {
			b.WriteByte('\\')
		}
		s = s[line.Next(&b, s):]
	}
	b.WriteByte('"')
	return b.String()
}

// Cut truncates text to cols characters; 0 or less leaves it.
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

// Wrap splits text at spaces into lines of at most cols characters, but of at least one word. A cols below 20
// counts as 20.
func Wrap(s string, cols int) (lines []string) {
	cols = max(cols, 20)
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > cols:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// Cleaner returns a writer that escapes text and writes it to w, line by line; newlines and tabs stay.
func Cleaner(w io.Writer) io.Writer { return &cleaner{w: w} }

type cleaner struct {
	w    io.Writer
	rest []byte // an incomplete character
	line visible.Line
}

func (c *cleaner) Write(p []byte) (int, error) {
	text := append(c.rest, p...)
	n := len(text)
	// The end of the text may be the start of a character.
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
		if s[0] == '\n' || s[0] == '\t' {
			b.WriteByte(s[0])
			c.line, s = visible.Line{}, s[1:]
			continue
		}
		s = s[c.line.Next(&b, s):]
	}
	c.rest = append([]byte(nil), text[n:]...)
	if _, err := io.WriteString(c.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
