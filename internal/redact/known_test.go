package redact

import (
	"strings"
	"testing"
)

func TestRandom(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		"9f86d081884c7d659a2feaa0c55ad015": true, " 8Xk2pQz7RmN4vB1cT6yL \n": true, "": false,
		"/usr/bin:/usr/lib/llvm-14/bin": false,
		"aaaaaaaaaaaaaaaaaaaaaaaa1":     false, "short1": false, "two words 9f86d081884c7d659a2f": false,
	} {
		if Random(value) != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
}

// TestNamesAndReach checks that a redactor accepts any name that NameOf returns, and that no form of a value is
// longer than its reach.
func TestNamesAndReach(t *testing.T) {
	t.Parallel()
	value := strings.Repeat("é\x01\"", 40)
	for _, s := range []string{"TOKEN", "", "__X", "ü€", strings.Repeat("a", 100), "A B/C"} {
		r, _, err := New(Options{Key: make([]byte, minKey), Secrets: []Secret{{NameOf(s), value}}})
		if err != nil {
			t.Errorf("%q: %v", s, err)
			continue
		}
		for _, f := range forms(value) {
			if len(f.text) > r.Reach() {
				t.Errorf("a form of %d bytes, and a reach of %d", len(f.text), r.Reach())
			}
		}
	}
}
