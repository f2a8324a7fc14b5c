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
			if _, err := Merge(Layer{Project, d}); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Template([]string{"pipy"}); !fault.Is(err, fault.NotFound) ||
		!strings.Contains(fault.HintOf(err), "did you mean pypi?") {
		t.Error(err)
	}
}
