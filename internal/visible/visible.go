// Package visible decides which characters are printed as they are, and escapes the others, so that untrusted text
// looks like what it is. It also quotes words for a shell, and formats numbers with their nouns. It imports no other
// package of Coppice; everything that shows or checks untrusted text imports it.
package visible

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// blank are characters of printable categories that print nothing.
var blank = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x2800, Hi: 0x2800, Stride: 1}}, // BRAILLE PATTERN BLANK
	R32: []unicode.Range32{
		{Lo: 0x13441, Hi: 0x13442, Stride: 1}, // EGYPTIAN HIEROGLYPH FULL BLANK, HALF BLANK
		{Lo: 0x16fe4, Hi: 0x16fe4, Stride: 1}, // KHITAN SMALL SCRIPT FILLER
		{Lo: 0x1d159, Hi: 0x1d159, Stride: 1}, // MUSICAL SYMBOL NULL NOTEHEAD
	},
}

// Rune reports whether r may be printed after another printable character. The space may; other white space, and
// control, format, private, surrogate and unassigned characters may not, which IsPrint excludes. Neither may what
// Unicode lets a renderer ignore: Default_Ignorable_Code_Point is derived (UAX #44, DerivedCoreProperties) from the
// category Cf and the two tables here. So characters that change the direction of writing, all of them in Cf, are
// excluded as well.
func Rune(r rune) bool {
	if ' ' <= r && r <= '~' {
		return true // nearly all that is read
	}
	return r != utf8.RuneError && unicode.IsPrint(r) &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, blank)
}

// Line tracks one line of printed text, to decide whether the next character may be printed. The zero value is the
// start of a line.
type Line struct{ based bool }

// Shows reports whether r, the next character, may be printed. A combining mark may if it follows a character to
// combine with; after a space, or at the start of the line, it would change what precedes the text.
func (l *Line) Shows(r rune) bool {
	ok := Rune(r) && (l.based || !unicode.Is(unicode.M, r))
	l.based = ok && r != ' '
	return ok
}

// Next writes the first character of s, or its escape, and returns its length in s.
func (l *Line) Next(b *strings.Builder, s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if l.Shows(r) {
		b.WriteString(s[:n])
	} else {
		Escape(b, s)
	}
	return n
}

// Escape writes the first character of s, which must not be empty, as an escape.
func Escape(b *strings.Builder, s string) {
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\t':
		b.WriteString(`\t`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == utf8.RuneError && n == 1, r < 0x20, r == 0x7f:
		fmt.Fprintf(b, `\%03o`, s[0])
	case r <= 0xffff:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

// Clean escapes one line of text: each character that is not displayed as itself, and each byte that is not UTF-8.
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
	l := Line{based: i > 0 && s[i-1] != ' '}
	for s = s[i:]; s != ""; {
		s = s[l.Next(&b, s):]
	}
	return b.String()
}
