package redact

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"
)

// never is an expression that never matches.
var never = regexp.MustCompile(`[^\x00-\x{10FFFF}]`)

// alone returns a Redactor that only knows the known formats.
func alone(t testing.TB) *Redactor {
	t.Helper()
	r, unfit, err := New(Options{Key: []byte("0123456789abcdef")})
	if err != nil || len(unfit) > 0 {
		t.Fatal(unfit, err)
	}
	return r
}

// TestRules_RedactExamples checks that the marked secret of each example is redacted, and everything else is not.
func TestRules_RedactExamples(t *testing.T) {
	t.Parallel()
	r := alone(t)
	for _, l := range r.rules {
		if len(l.drop) == 0 || len(l.keep) == 0 {
			t.Errorf("%s has no example with a secret, or none without", l.name)
		}
		for _, e := range l.drop {
			head, rest, ok := strings.Cut(e, "‹")
			secret, tail, ok2 := strings.Cut(rest, "›")
			if !ok || !ok2 {
				t.Errorf("%s: %q has no signs", l.name, e)
				continue
			}
			got := r.String(head + secret + tail)
			between, ok := strings.CutPrefix(got, head)
			between, ok2 = strings.CutSuffix(between, tail)
			if !ok || !ok2 || !strings.HasPrefix(between, "[redacted:") ||
				strings.ContainsAny(between[1:len(between)-1], "[]") || !strings.HasSuffix(between, "]") {
				t.Errorf("%s:\n   %q\nis %q", l.name, e, got)
			}
			if again := r.String(got); !strings.Contains(again, between) {
				t.Errorf("%s: redacted twice, %q is %q", l.name, got, again)
			}
		}
		for _, e := range l.keep {
			if got := r.String(e); got != e {
				t.Errorf("%s:\n   %q\nis %q", l.name, e, got)
			}
		}
	}
}

// TestRules_MatchTheirExamples checks that an example of a rule is found by that rule, unless
// a better rule matches at the same place.
func TestRules_MatchTheirExamples(t *testing.T) {
	t.Parallel()
	for i, l := range alone(t).rules {
		for _, e := range l.drop {
			one := alone(t)
			one.rules[i].name = "this"
			for j, other := range one.rules {
				if j != i {
					other.ready = func() machine { return machine{head: never} }
				}
			}
			if got := one.String(strings.NewReplacer("‹", "", "›", "").Replace(e)); !strings.Contains(got, "[redacted:this:") {
				t.Errorf("%s does not find %q", l.name, e)
			}
		}
	}
}

// TestRules_AreWellFormed checks what the reader and the engine assume about rules.txt.
func TestRules_AreWellFormed(t *testing.T) {
	t.Parallel()
	for _, l := range alone(t).rules {
		if !names().MatchString(l.name) {
			t.Errorf("%q is not a name", l.name)
		}
		for i, key := range l.keys {
			if len(key) < 3 || l.near < nearest || len(key) > l.near {
				t.Errorf("%s: the key %q is shorter than 3 bytes, or longer than near", l.name, key)
			}
			for j, other := range l.keys {
				if i != j && strings.HasPrefix(other, key) {
					t.Errorf("%s: the key %q begins %q", l.name, key, other)
				}
			}
		}
		if tree, err := syntax.Parse(l.head, syntax.Perl); err != nil || tree.MaxCap() > 1 {
			t.Errorf("%s: head: %v, or more than one group", l.name, err)
		}
		if m := l.ready(); m.head.MatchString("") || m.tail != nil && m.body == nil {
			t.Errorf("%s: a head that matches nothing, or a tail without a body", l.name)
		}
	}
}
