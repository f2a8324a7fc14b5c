//go:build linux && (amd64 || arm64) && !cgo

package escape_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
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

// gvisorSettings are fewer: each start is that of a kernel.
func gvisorSettings() []setting {
	return []setting{
		{"gvisor", plan.TierGvisor, plan.NetRules, plan.UserRoot, true, false, false},
		{"gvisor-copy", plan.TierGvisor, plan.NetRules, plan.UserRoot, true, true, true},
	}
}

// TestEscapeGvisorFindings plays the findings in tier gvisor.
func TestEscapeGvisorFindings(t *testing.T) {
	t.Parallel()
	playFindings(t, gvisorSettings(), 2)
}

// TestEscapeGvisorRoots tries a part of the hostile images in tier gvisor.
func TestEscapeGvisorRoots(t *testing.T) {
	t.Parallel()
	hostileRoots(t, gvisorSettings(), 16*share)
}

// TestEscapeGvisorFindingsAsUser is the run as a user; see TestAsUser.
func TestEscapeGvisorFindingsAsUser(t *testing.T) {
	t.Parallel()
	asUser(t, "^TestEscapeGvisorFindings$")
}
