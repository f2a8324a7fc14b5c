package grant

import (
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Issued is a grant that a sandbox has, or had.
type Issued struct {
	Grant
	Placeholder string   // "" in ModeAdd
	Aliases     []string // other placeholders for it, which processes continue to use after a fork
	// Revoked means that the placeholders are only refused: the grant was revoked, or is one of the sandbox's parent.
	Revoked bool
}

// placeholders returns all placeholders of g.
func (g Issued) placeholders() []string {
	if g.Mode == ModeAdd {
		return nil
	}
	return append([]string{g.Placeholder}, g.Aliases...)
}

// Set is the grants of a sandbox. It does not change; several goroutines may use it. The zero Set has none.
type Set struct {
	sandbox string
	grants  []Issued
}

// NewSet returns the set of the grants of a sandbox; sandbox is its name, for hints. Grant.Kind must be that of the
// shape of the placeholder. It fails if a grant is invalid, or if requests would match two grants equally.
func NewSet(sandbox string, all []Issued) (Set, error) {
	s := Set{sandbox, slices.Clone(all)}
	var needles []string
	for i, g := range all {
		if err := g.Check(); err != nil {
			return Set{}, err
		}
		if err := g.fits(); err != nil {
			return Set{}, err
		}
		for _, p := range g.placeholders() {
			for _, n := range g.Kind.Parts(p) {
				same := func(o string) bool { return strings.Contains(o, n) || strings.Contains(n, o) }
				if len(n) < leastLength || slices.ContainsFunc(needles, same) {
					return Set{}, fault.New(fault.Invalid, "grant %s: its placeholder is short, or that of another", g.Name).
						WithHint("revoke the grant, and give it again: coppice grant %s %s", sandbox, g.Name)
				}
				needles = append(needles, n)
			}
		}
		for _, o := range all[:i] {
			switch {
			case g.Name == o.Name:
				return Set{}, fault.New(fault.Invalid, "duplicate grant %s", g.Name).WithHint("remove one of them")
			case g.competes(o):
				return Set{}, fault.New(fault.Invalid, "grants %s and %s add a secret to the same requests", o.Name, g.Name).
					WithHint("give one of them longer paths, such as --path '/v1/*'")
			}
		}
	}
	return s, nil
}

// fits returns an error if the sites of g are not for its secret: an access key of AWS signs, and nothing else does.
func (g Issued) fits() error {
	signs := slices.ContainsFunc(g.Sites, func(s Site) bool { return s.In == InSigV4 })
	others := slices.ContainsFunc(g.Sites, func(s Site) bool { return s.In != InSigV4 })
	switch {
	case g.Revoked || g.Mode == ModeAdd:
	case signs && g.Kind != AWS:
		return fault.New(fault.Invalid, "grant %s: secret %s is not an access key, which site sigv4 requires", g.Name,
			g.Secret).
			WithHint("set it to ID:SECRET, or ID:SECRET:TOKEN, or read it with: coppice secret set %s --from aws", g.Secret)
	case others && g.Kind == AWS:
		return fault.New(fault.Invalid, "grant %s: secret %s is an access key of AWS, which only signs requests", g.Name,
			g.Secret).WithHint("use --sigv4 in place of other sites")
	}
	return nil
}

// competes reports whether both grants match the same requests equally, and one adds its secret.
func (g Issued) competes(o Issued) bool {
	same := func(a, b []string) bool { return a == nil && b == nil || intersect(a, b) }
	var hosts, others []string
	for _, h := range g.Hosts {
		hosts = append(hosts, h.String())
	}
	for _, h := range o.Hosts {
		others = append(others, h.String())
	}
	return (g.Mode == ModeAdd || o.Mode == ModeAdd) && !g.Revoked && !o.Revoked && intersect(hosts, others) &&
		same(g.Allow.Paths, o.Allow.Paths) && slices.ContainsFunc(g.Sites, func(s Site) bool {
		return slices.ContainsFunc(o.Sites, func(t Site) bool { return s.room() == t.room() })
	})
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// room identifies the part of a head that the secret takes, where an added secret replaces any other.
func (s Site) room() string {
	switch s.In {
	case InBearer, InBasic, InGit, InSigV4:
		return "header:Authorization"
	case InHeader:
		return "header:" + s.Name
	}
	return s.String()
}
