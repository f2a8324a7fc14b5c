package redact

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestAutomaton_FindsAllOccurrences compares the automaton with a search at each position,
// near the root and far from it.
func TestAutomaton_FindsAllOccurrences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b builder
		var words []string
		for _, w := range rapid.SliceOfN(rapid.StringMatching(`[abc]{1,12}`), 1, 400).Draw(t, "words") {
			if n := int(b.add(w)); n == len(words) {
				words = append(words, w)
			} else if words[n] != w {
				t.Fatalf("%q has the number of %q", w, words[n])
			}
		}
		a := b.build()
		text := rapid.StringMatching(`[abcdABC]{0,60}`).Draw(t, "text")
		state := int32(0)
		for i := range len(text) {
			var got, want []string
			var found bool
			if state, found = a.step(state, a.class[text[i]]); found {
				a.each(state, func(w int32) { got = append(got, words[w]) })
			}
			depth := 0
			for _, w := range words {
				if strings.HasSuffix(fold(text[:i+1]), w) {
					want = append(want, w)
				}
				for n := range len(w) + 1 {
					if strings.HasSuffix(fold(text[:i+1]), w[:n]) {
						depth = max(depth, n)
					}
				}
			}
			slices.SortFunc(want, func(a, b string) int { return len(b) - len(a) })
			if !slices.Equal(got, want) || int(a.depth[state]) != depth {
				t.Fatalf("%q: %q at depth %d, want %q at %d", text[:i+1], got, a.depth[state], want, depth)
			}
		}
	})
}
