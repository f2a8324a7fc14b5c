package tty

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells, written in columns. The zero value is ready.
type Table struct{ rows [][]string }

// Row adds a row. Cells from inside a sandbox must be cleaned before.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Len gives the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write writes the table with two spaces between columns, and none at the end
// of a line.
func (t *Table) Write(w io.Writer) error {
	var width []int
	for _, r := range t.rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, r := range t.rows {
		var line strings.Builder
		for i, c := range r {
			line.WriteString(c)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
