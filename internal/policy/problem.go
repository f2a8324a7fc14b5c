package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxProblems is the maximum number of problems reported for one file.
const maxProblems = 20

// Problem is an error in a file, or a possible mistake, and where it is.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"` // in characters, from 1; 0 if unknown
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// String returns text such as "coppice.yaml:3:5: unknown key".
func (p Problem) String() string {
	at := p.File
	for _, n := range []int{p.Line, p.Column} {
		if n > 0 {
			at += ":" + strconv.Itoa(n)
		}
	}
	return at + ": " + p.Message
}

// Problems are the errors of a file, in the order of its lines. They are the cause of an error of Parse.
type Problems []Problem

// Error returns the text of all problems.
func (p Problems) Error() string {
	var all []string
	for _, one := range p {
		all = append(all, one.String())
	}
	return strings.Join(all, "; ")
}

// ProblemsOf returns the problems that are the cause of err, or nil.
func ProblemsOf(err error) Problems {
	var p Problems
	if errors.As(err, &p) {
		return p
	}
	return nil
}

// sorted sorts problems by file, line and column.
func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return p
}

// fault returns one error for the problems of the file called name; nil without problems.
func (p Problems) fault(name string, kind fault.Kind) error {
	if len(p) == 0 {
		return nil
	}
	p = p.sorted()
	what := fmt.Sprintf("%d errors", len(p))
	switch {
	case len(p) == 1:
		what = "an error"
	case len(p) > maxProblems:
		what += fmt.Sprintf(", of which these are the first %d", maxProblems)
		p = p[:maxProblems]
	}
	return fault.New(kind, "%s has %s", name, what).Because(p).
		WithHint("%s", cmp.Or(p[0].Hint, "see: coppice policy schema"))
}
