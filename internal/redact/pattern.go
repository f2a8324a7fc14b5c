package redact

import (
	"regexp"
	"regexp/syntax"

	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// MaxPatterns is the maximum number of patterns of a Redactor.
	MaxPatterns = 64
	// MaxMatch is the number of bytes, from the start of a match, that a pattern is certain to see of a line. A
	// longer match may be found in parts, or not at all.
	MaxMatch = 1 << 10

	maxExpr    = 1 << 10 // maximum bytes of an expression
	maxProgram = 4 << 10 // maximum instructions of its program

	// window is the maximum number of bytes of a line that are searched at a time.
	window = 2 * MaxMatch
)

// Pattern is a regular expression (RE2) of the policy. It is matched within lines, as by grep. Its first group is the
// secret; without groups, the whole match is.
type Pattern struct {
	Name string
	Expr string
}

// compiled is a compiled pattern.
type compiled struct {
	name string
	re   *regexp.Regexp
	has  []byte // text that every match contains; may be empty
}

func compile(patterns []Pattern) ([]compiled, error) {
	if len(patterns) > MaxPatterns {
		return nil, fault.New(fault.Invalid, "too many patterns: %d; the limit is %d", len(patterns), MaxPatterns).
			WithHint("combine some of them with |")
	}
	var all []compiled
	for _, p := range patterns {
		c, err := p.compile()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Check returns the reason why an expression is invalid for a Pattern; nil if it is valid.
func Check(expr string) error {
	_, err := Pattern{Name: "redact", Expr: expr}.compile()
	return err
}

func (p Pattern) compile() (c compiled, err error) {
	bad := func(format string, args ...any) (compiled, error) {
		e := fault.New(fault.Invalid, format, args...)
		e.Message = "pattern " + p.Name + ": " + e.Message
		return c, e.WithHint("write it in the syntax of RE2: https://github.com/google/re2/wiki/Syntax")
	}
	if !names().MatchString(p.Name) {
		return c, fault.New(fault.Invalid, "invalid pattern name %q", p.Name).
			WithHint("use at most 64 letters, digits, \"_\", \".\" and \"-\"")
	}
	if len(p.Expr) > maxExpr {
		return bad("too long: %d bytes; the limit is %d", len(p.Expr), maxExpr)
	}
	tree, err := syntax.Parse(p.Expr, syntax.Perl)
	if err != nil {
		return bad("%v", err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return bad("%v", err)
	}
	if n := len(program.Inst); n > maxProgram {
		return bad("too complex: %d steps; the limit is %d", n, maxProgram)
	}
	re, err := regexp.Compile(p.Expr)
	if err != nil {
		return bad("%v", err)
	}
	if re.MatchString("") {
		return bad("it matches the empty string")
	}
	return compiled{p.Name, re, []byte(literal(tree))}, nil
}

// literal returns the longest text that every match of an expression contains, as far as that is easily found.
// Searching for it first is much faster.
func literal(e *syntax.Regexp) (longest string) {
	switch e.Op {
	case syntax.OpLiteral:
		if e.Flags&syntax.FoldCase == 0 {
			return string(e.Rune)
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literal(e.Sub[0])
	case syntax.OpConcat:
		for _, sub := range e.Sub {
			if text := literal(sub); len(text) > len(longest) {
				longest = text
			}
		}
	}
	return longest
}

// secret returns the part of a match that is replaced.
func secret(match []int) (from, to int) {
	if len(match) > 2 && match[2] >= 0 {
		return match[2], match[3]
	}
	return match[0], match[1]
}
