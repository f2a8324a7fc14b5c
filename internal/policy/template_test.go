package policy

import (
	"regexp"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// commented matches the lines of a template that are settings without their #.
var commented = regexp.MustCompile(`(?m)^( *)# ( *(?:- .*|[A-Za-z]+:(?: [^ ]+| \[.*\])?)$)`)

// TestTemplate_IsValid checks that a new file is valid, and stays valid when its comments are uncommented.
func TestTemplate_IsValid(t *testing.T) {
	t.Parallel()
	for _, presets := range [][]string{nil, {"pypi"}, {"npm", "github", "npm"}} {
		text, err := Template(presets)
		if err != nil {
			t.Fatal(err)
		}
		said := commented.ReplaceAllString(string(text), "$1$2")
		if said == string(text) || strings.Contains(said, "# files:") {
			t.Fatal("nothing was commented out")
		}
		for _, one := range []string{string(text), said} {
			d, err := Parse("coppice.yaml", []byte(one))
			if err != nil {
				t.Fatalf("%s\n%s", told(err), one)
			}
			p, err := Merge(Layer{Project, d})
			if err != nil {
				t.Error(err)
			}
			if all := p.Unenforced(); len(all) > 0 {
				t.Error(told(all))
			}
			for _, tier := range Tiers() { // the comment offers exactly the tiers that are enforced
				enforced := len(Policy{Tier: Said[Tier]{tier, Origin{"x.yaml", 1}}}.Unenforced()) == 0
				if strings.Contains(one, string(tier)) != enforced {
					t.Errorf("tier %s: enforced is %t, not so\n%s", tier, enforced, one)
				}
			}
		}
	}
	if _, err := Template([]string{"pipy"}); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(fault.HintOf(err), "did you mean pypi?") {
		t.Error(err)
	}
}
