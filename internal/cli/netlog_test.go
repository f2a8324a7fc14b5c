package cli

import (
	"strings"
	"testing"
)

// TestWhatNext_QuotesNamesOfTheSandbox checks that names are quoted: a sandbox chooses the names that it looks up,
// and a user copies the line into a shell.
func TestWhatNext_QuotesNamesOfTheSandbox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"$(touch x).example", "a;reboot", "`id`", "a b", "[fd00::7]:443", "a'b"} {
		quoted := "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
		want := "see why: coppice net why box " + quoted + "; allow it: coppice net allow box " + quoted
		if got := whatNext("box", name, ""); got != want {
			t.Errorf("%q: %q", name, got)
		}
		if got := whatNext("box", "mirror.example", name); !strings.HasSuffix(got, " box "+quoted) {
			t.Errorf("fix %q: %q", name, got)
		}
	}
	for _, name := range []string{"", "--deny", "-h"} {
		if got := whatNext("box", name, ""); got != "" {
			t.Errorf("%q: %q", name, got)
		}
	}
}
