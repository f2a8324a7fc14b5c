package tty

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells, written in columns. The zero value is ready to use.
type Table struct{ rows [][]string }

// Row adds a row. The caller must clean cells from inside a sandbox first.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes the table with two spaces between columns, without spaces at the end of a line.
func (t *Table) Write(w io.Writer) error {
	var cols []int
	for _, r := range t.rows {
		for i, c := range r {
			if i == len(cols) {
				cols = append(cols, 0)
			}
			cols[i] = max(cols[i], width(c))
		}
	}
	var b strings.Builder
	for _, r := range t.rows {
		var line strings.Builder
		for i, c := range r {
			line.WriteString(c)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", cols[i]-width(c)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// width returns the number of characters of s on a terminal: all except the escape sequences of Palette.
func width(s string) int {
	n := 0
	for s != "" {
		if rest, ok := strings.CutPrefix(s, "\x1b["); ok {
			if _, after, ok := strings.Cut(rest, "m"); ok {
				s = after
				continue
			}
		}
		_, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		n++
	}
	return n
}
