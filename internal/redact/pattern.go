package redact

import (
	"regexp"
	"regexp/syntax"

	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// MaxPatterns is how many patterns a Redactor takes.
	MaxPatterns = 64
	// MaxMatch is how much of a line a pattern is sure to see from where a match begins, in
	// bytes. What is longer is found in parts, or not at all.
	MaxMatch = 1 << 10

	maxExpr    = 1 << 10 // bytes of an expression
	maxProgram = 4 << 10 // instructions of what it is compiled to

	// window is how much of a line is looked at, where it does not end before.
	window = 2 * MaxMatch
)

// Pattern is a regular expression (RE2) of the policy. It is matched within lines, as grep
// does. Its first group is the secret; without groups, all of it.
type Pattern struct {
	Name string
	Expr string
}

// compiled is a pattern that can be used.
type compiled struct {
	name string
	re   *regexp.Regexp
}

func compile(patterns []Pattern) ([]compiled, error) {
	if len(patterns) > MaxPatterns {
		return nil, fault.New(fault.Invalid, "%d patterns, more than %d", len(patterns), MaxPatterns).
			WithHint("join some of them by |")
	}
	var all []compiled
	for _, p := range patterns {
		re, err := p.compile()
		if err != nil {
			return nil, err
		}
		all = append(all, compiled{p.Name, re})
	}
	return all, nil
}

func (p Pattern) compile() (*regexp.Regexp, error) {
	bad := func(format string, args ...any) error {
		e := fault.New(fault.Invalid, format, args...)
		e.Message = "pattern " + p.Name + ": " + e.Message
		return e.WithHint("write it in the syntax of RE2: https://github.com/google/re2/wiki/Syntax")
	}
	if !names.MatchString(p.Name) {
		return nil, fault.New(fault.Invalid, "%q is no name for a pattern", p.Name).
			WithHint("name it with letters, digits, \"_\", \".\" and \"-\", 64 at most")
	}
	if len(p.Expr) > maxExpr {
		return nil, bad("%d bytes, more than %d", len(p.Expr), maxExpr)
	}
	tree, err := syntax.Parse(p.Expr, syntax.Perl)
	if err != nil {
		return nil, bad("%v", err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, bad("%v", err)
	}
	if n := len(program.Inst); n > maxProgram {
		return nil, bad("%d steps, more than %d: its counts are too large", n, maxProgram)
	}
	re, err := regexp.Compile(p.Expr)
	if err != nil {
		return nil, bad("%v", err)
	}
	if re.MatchString("") {
		return nil, bad("it matches where nothing is")
	}
	return re, nil
}

// secret is the part of a match that is to go.
func secret(match []int) (from, to int) {
	if len(match) > 2 && match[2] >= 0 {
		return match[2], match[3]
	}
	return match[0], match[1]
}
