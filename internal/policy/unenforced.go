package policy

import (
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// unenforcedHint is the hint for Unenforced settings.
const unenforcedHint = "remove it; it is not enforced yet"

// Unenforced returns the settings of p that are not enforced yet, with their origins, except built-in ones.
func (p Policy) Unenforced() Problems {
	var out Problems
	say := func(at Origin, key, value string) {
		if at.BuiltIn() {
			return
		}
		out = append(out,
			Problem{File: at.Source, Line: at.Line, Message: key + " is not enforced yet: " + value, Hint: unenforcedHint})
	}
	if p.Tier.Value == MicroVM {
		say(p.Tier.At, "tier", string(p.Tier.Value))
	}
	decoys := map[Path]bool{}
	for _, s := range p.Decoys {
		decoys[s.Value] = true
		why := s.Value.unhideable()
		if strings.HasSuffix(s.Value.text, "/*") {
			why = "it does not name a single file"
		}
		if why != "" {
			say(s.At, "files.decoys", s.Value.String()+": "+why)
		}
	}
	for _, s := range p.Hide {
		if why := s.Value.unhideable(); why != "" && !decoys[s.Value] {
			say(s.At, "files.hide", s.Value.String()+": "+why)
		}
	}
	return out.sorted()
}

// unhideable returns why p cannot be hidden, or "".
func (p Path) unhideable() string {
	if p.text == "/" {
		return "it is the whole root"
	}
	for _, own := range []string{"/dev", "/proc", "/sys"} {
		if p.beneath(Path{own}) {
			return "a sandbox has a " + own + " separate from the host's"
		}
	}
	return ""
}

// Enforceable returns p unchanged, or Unsupported, with Unenforced as its cause, if p has settings that are not
// enforced yet.
func (p Policy) Enforceable() (Policy, error) {
	if all := p.Unenforced(); len(all) > 0 {
		if len(all) > maxProblems {
			all = all[:maxProblems]
		}
		return Policy{}, fault.New(fault.Unsupported, "the policy says what this build cannot enforce").Because(all).
			WithHint(unenforcedHint)
	}
	return p, nil
}
