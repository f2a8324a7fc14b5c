package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestExitCodeOf_MatchesHelp compares the exit code of each kind with the help topic exit-codes.
func TestExitCodeOf_MatchesHelp(t *testing.T) {
	t.Parallel()
	for _, k := range []fault.Kind{
		fault.Internal, fault.Invalid, fault.NotFound, fault.Ambiguous, fault.Exists, fault.Conflict, fault.Unsupported,
		fault.Denied, fault.NoSpace, fault.ReadOnly, fault.Corrupt, fault.Version, fault.Unavailable, fault.Cancelled,
		fault.Timeout, fault.TooLarge,
	} {
		want := ""
		for line := range strings.Lines(exitCodesHelp) {
			words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' || r == ':' || r == '\n' })
			for i, word := range words {
				if i > 0 && word == string(k) {
					want = words[0]
				}
			}
		}
		if got := fmt.Sprint(exitCodeOf(k)); got != want {
			t.Errorf("%s: exit code %s, and the help says %q", k, got, want)
		}
	}
	if got := exitCodeOf("of a newer daemon"); got != exitError {
		t.Errorf("an unknown kind: exit code %d", got)
	}
}
