// Package limit is the table of the bounds on what a sandbox can make large: the paths, files, records and requests
// that the host reads. Each bound is a constant with an entry in the table of its area (one file each), from which
// docs/LIMITS.md is generated. The code that enforces a bound uses the constant, so that there is one place to read and
// one to change. Every package may import it.
package limit

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bound is one entry of the table.
type Bound struct {
	Name    string // what is bounded, lower case
	Value   int64  // the maximum that is accepted, in Unit; always positive
	Unit    string // a plural noun: "bytes", "entries", "levels", "seconds"
	Reached string // what happens at the bound: the error, or how the answer shows that it is truncated
	Test    string // file and function of the test that reaches the bound, and "lowered", separated by spaces
}

// lowered ends Bound.Test if the test reaches a lower bound than Value, because Value would take too much time or
// space.
const lowered = " lowered"

// Where returns the file and the function of the test.
func (b *Bound) Where() (file, test string) {
	file, test, _ = strings.Cut(strings.TrimSuffix(b.Test, lowered), " ")
	return file, test
}

// area is a section of the table.
type area struct {
	title  string
	bounds []Bound
}

// areas returns all sections, in the order of the document.
func areas() []area {
	return []area{setup(), sandboxes(), history(), archives(), repositories(), line(), evidence(), host(), gate()}
}

// Table returns all bounds, in the order of the document.
func Table() []Bound {
	var all []Bound
	for _, a := range areas() {
		all = append(all, a.bounds...)
	}
	return all
}

// Markdown renders the table as docs/LIMITS.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Limits

Whatever a sandbox can make large is bounded where the host reads it. The table is
generated from ` + "`internal/limit`" + `, whose constants the code enforces. A request that
reaches a bound fails with an error of kind ` + "`too_large`" + `, or gets a truncated answer that
says so, unless the table says otherwise.

Each bound has a test that reaches it. Where that would take too long, or too much room,
the test runs the same code with a lower bound, and the table says ` + "`lowered`" + `.
`)
	for _, a := range areas() {
		if len(a.bounds) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n| what | at most | when it is reached | test |\n|---|---|---|---|\n", a.title)
		for _, l := range a.bounds {
			file, name := l.Where()
			how := ""
			if strings.HasSuffix(l.Test, lowered) {
				how = ", `lowered`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | [`%s`](../%s)%s |\n", l.Name, amount(l.Value, l.Unit), l.Reached, name, file, how)
		}
	}
	return b.String()
}

// Cut returns s, truncated with "..." to at most most bytes. The result is valid UTF-8 if s is.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most - len("...")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// amount formats a number of units for people: bytes with a binary prefix, others with separated thousands.
func amount(n int64, unit string) string {
	if unit == "bytes" {
		prefixes := []string{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"}
		i := 0
		for n >= 1024 && n%1024 == 0 && i < len(prefixes)-1 {
			n, i = n/1024, i+1
		}
		unit = prefixes[i]
	}
	digits := []byte(fmt.Sprint(n))
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = slices.Insert(digits, i, ',')
	}
	return string(digits) + " " + unit
}
