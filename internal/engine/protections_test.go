//go:build linux

package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// TestStart_RequiresEarlierProtections starts a sandbox on a host that provides other protections each time, and
// forks it: all protections that it has run with stay required.
func TestStart_RequiresEarlierProtections(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	ctx := t.Context()
	started := func(name string, want ...string) {
		t.Helper()
		if _, err := h.Start(ctx, name); err != nil {
			t.Fatal(err)
		}
		if got := h.boxes.started[len(h.boxes.started)-1].Require; !slices.Equal(got, want) {
			t.Errorf("%s was started with %q required, want %q", name, got, want)
		}
		if _, err := h.Stop(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	h.boxes.holds = []string{"user", "freeze"}
	started("a")
	h.boxes.holds = []string{"landlock"}
	started("a", "user", "freeze")
	h.close()
	h.open()
	started("a", "user", "freeze", "landlock")
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	started("b", "user", "freeze", "landlock")
}

// TestFindings_HoldForTheWholeHome starts sandboxes of one home on a host that provided a protection earlier.
func TestFindings_HoldForTheWholeHome(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	has := meta.Finding{Protection: "user", On: "ext4", Kernel: "6.1"}
	lacks := meta.Finding{Protection: "landlock", Lacks: "ENOSYS", Kernel: "6.1"}
	h.boxes.found = []meta.Finding{has, lacks}
	h.onDir("a")
	h.onDir("b")
	h.onDir("c")
	if _, err := h.Start(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	h.close()
	h.open()
	if _, err := h.Start(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if got := h.boxes.started[1].Known; !slices.Equal(got, []meta.Finding{has, lacks}) {
		t.Errorf("another sandbox starts with %+v known", got)
	}
	r, err := h.Probe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	shown := r.Items[len(r.Items)-2:]
	if !shown[0].OK || shown[0].Name != "user on ext4" || shown[1].OK || shown[1].Name != "landlock" ||
		!strings.Contains(shown[1].Detail, "ENOSYS") || shown[1].Remedy != "give the daemon what gives landlock" {
		t.Errorf("probe shows %+v", shown)
	}

	// A start compares also with what another start found while it was in progress.
	less := has
	less.Lacks = "EINVAL"
	h.boxes.found = []meta.Finding{less}
	if _, err := h.Start(ctx, "c"); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("a start without a protection that the home has had: %v", err)
	}
	rec, err := h.DB.Sandbox(ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.boxes.Attach(ctx, h.runDir(rec.ID)); !fault.Is(err, fault.NotFound) {
		t.Errorf("its box still runs: %v", err)
	}
}
