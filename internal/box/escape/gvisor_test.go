//go:build linux && (amd64 || arm64) && !cgo

package escape_test

import (
	"testing"

	_ "github.com/coppice-dev/coppice/internal/box/gvisor" // the test's binary is that of conductors, too
	"github.com/coppice-dev/coppice/internal/box/plan"
)

// The corpus in tier gvisor: see TestGvisor of package box for why this is a build of its
// own. What its kernel answers in another way, as that it has no such call, is refused as
// well.
func TestEscapeGvisor(t *testing.T) {
	other := otherUser()
	tryAll(t, []sandbox{
		{"root/gvisor", plan.UserRoot, plan.NetRules, true, false, plan.TierGvisor},
		{other + "/gvisor", other, plan.NetRules, true, false, plan.TierGvisor},
	})
}

// TestEscapeGvisorAsUser is the run as a user; see TestAsUser.
func TestEscapeGvisorAsUser(t *testing.T) { asUser(t, "^TestEscapeGvisor$") }
