package cli

import (
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestEvery_RefersByID checks that --all refers by ID to the sandboxes that it chose: while the user confirms,
// another sandbox may get the name of one.
func TestEvery_RefersByID(t *testing.T) {
	t.Parallel()
	e := &every{all: true}
	names, err := e.names(t.Context(), completing(t), nil, func(wire.Sandbox) bool { return true })
	if err != nil || !slices.Equal(names, []string{"box"}) {
		t.Fatalf("%q, %v", names, err)
	}
	if got := e.ref("box"); got != "0123456789ab" {
		t.Errorf("box is removed as %q", got)
	}
	if got := (&every{}).ref("box"); got != "box" {
		t.Errorf("a name from the command line is %q", got)
	}
}
