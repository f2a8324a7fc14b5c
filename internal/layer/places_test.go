package layer

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
)

// chosenBy decides as places do, but looks at each path.
func chosenBy(paths []string, p string) (is, leads bool) {
	for _, c := range paths {
		c = path.Clean("/" + c)
		is = is || c == "/" || p == c || strings.HasPrefix(p, c+"/")
		leads = leads || strings.HasPrefix(c, p+"/")
	}
	return is, is || leads
}

func TestPlaces_SelectPathsAtAndBelow(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	some := func() string {
		names := []string{"a", "a-", "a.b", "b", "a\x01", "\xff"}
		p := ""
		for range 1 + r.IntN(4) {
			p += "/" + names[r.IntN(len(names))]
		}
		return p
	}
	for range 2000 {
		var paths []string
		for range 1 + r.IntN(6) {
			paths = append(paths, some())
		}
		p := some()
		at, chosen := newPlaces(paths), true
		for name := range strings.SplitSeq(p[1:], "/") {
			if chosen {
				at, chosen = at.in(name)
			}
		}
		is, leads := chosenBy(paths, p)
		if chosen != leads || chosen && at.here() != is {
			t.Fatalf("%q of %q: chosen %v, here %v; want %v, %v", p, paths, chosen, at.here(), leads, is)
		}
	}
	if all := newPlaces([]string{"b", "/"}); !all.here() {
		t.Error("the root is not a place")
	}
	if !newPlaces(nil).none() {
		t.Error("no paths are a place")
	}
}

// TestPlaces_StepAllocatesNothing checks the step that a walk takes at each entry: it copies nothing, however many
// places there are.
func TestPlaces_StepAllocatesNothing(t *testing.T) {
	var paths []string
	for i := range 100_000 {
		paths = append(paths, fmt.Sprintf("d/%d/f", i))
	}
	d := newPlaces(paths).below("d")
	if n := testing.AllocsPerRun(100, func() { d.below("77") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if at := d.below("77"); len(at.list) != 1 || at.rest(at.list[0]) != "f" {
		t.Errorf("below d/77: %q", at.list)
	}
}
