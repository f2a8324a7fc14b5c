package cli

import (
	"strings"
	"testing"
)

func TestCutOff_NamesCommandForRest(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, to, want string }{
		{"HEAD~1", "HEAD", "coppice diff box HEAD~1 HEAD -- PATH"},
		{"aaaaaaaaaaaa", "", "coppice diff box aaaaaaaaaaaa -- PATH"},
	} {
		var b strings.Builder
		if err := (&app{}).cutOff(&b, 1000, "box", tc.from, tc.to); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); !strings.Contains(got, "1000 paths") || !strings.HasSuffix(got, tc.want+"\n") {
			t.Errorf("%q, want an end of %q", got, tc.want)
		}
	}
}
