//go:build linux && (amd64 || arm64) && !cgo

package escape_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

// TestEscapeGvisor runs the corpus in tier gvisor: see TestGvisor of package box for why this is a separate build. An
// attempt that its kernel answers differently, for example because it lacks the call, counts as refused.
func TestEscapeGvisor(t *testing.T) {
	other := otherUser()
	tryAll(t, []sandbox{
		{"root/gvisor", plan.UserRoot, plan.NetRules, true, false, plan.TierGvisor},
		{other + "/gvisor", other, plan.NetRules, true, false, plan.TierGvisor},
	})
}

// TestEscapeGvisorAsUser runs TestEscapeGvisor as a user; see TestAsUser.
func TestEscapeGvisorAsUser(t *testing.T) { asUser(t, "^TestEscapeGvisor$") }

// gvisorSettings returns few settings: each start is that of a kernel.
func gvisorSettings() []setting {
	return []setting{
		{"gvisor", plan.TierGvisor, plan.NetRules, plan.UserRoot, true, false, false},
		{"gvisor-copy", plan.TierGvisor, plan.NetRules, plan.UserRoot, true, true, true},
	}
}

// TestEscapeGvisorFindings tries the findings in tier gvisor.
func TestEscapeGvisorFindings(t *testing.T) {
	t.Parallel()
	playFindings(t, gvisorSettings(), 2)
}

// TestEscapeGvisorRoots tries some of the hostile images in tier gvisor.
func TestEscapeGvisorRoots(t *testing.T) {
	t.Parallel()
	hostileRoots(t, gvisorSettings(), 16*share)
}

// TestEscapeGvisorFindingsAsUser runs TestEscapeGvisorFindings as a user; see TestAsUser.
func TestEscapeGvisorFindingsAsUser(t *testing.T) {
	t.Parallel()
	asUser(t, "^TestEscapeGvisorFindings$")
}
