//go:build linux && (amd64 || arm64)

package escape_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// needsRunc skips a test of tier container where runc is not installed.
func needsRunc(t *testing.T) {
	t.Helper()
	if programtest.Runc() == "" {
		t.Skip("needs oci-runtime: an OCI runtime makes the container")
	}
}

// TestEscapeContainer runs the corpus in tier container, with runc.
func TestEscapeContainer(t *testing.T) {
	needsRunc(t)
	all := []sandbox{{"root/container", plan.UserRoot, plan.NetRules, true, false, plan.TierContainer}}
	if other := otherUser(); other != plan.UserMe { // an ordinary user has only root there
		all = append(all, sandbox{other + "/container", other, plan.NetRules, true, false, plan.TierContainer})
	}
	tryAll(t, all)
}

// TestEscapeContainerAsUser runs TestEscapeContainer as a user; see TestAsUser.
func TestEscapeContainerAsUser(t *testing.T) { asUser(t, "^TestEscapeContainer$") }

// containerSettings are the settings of tier container: a root of layers, and a plain directory with what the policy
// mounts.
func containerSettings() []setting {
	return []setting{
		{"container", plan.TierContainer, plan.NetRules, plan.UserRoot, true, false, false},
		{"copy-container", plan.TierContainer, plan.NetRules, plan.UserRoot, true, true, true},
	}
}

// hostKernels are the settings of all tiers that have the host's kernel, and that this host has.
func hostKernels() []setting {
	if programtest.Runc() == "" {
		return settings()
	}
	return append(settings(), containerSettings()...)
}

// TestEscapeContainerFindings tries the findings in tier container.
func TestEscapeContainerFindings(t *testing.T) {
	t.Parallel()
	needsRunc(t)
	if testing.Short() {
		t.Skip("needs full-run: the root of a sandbox is made as in tier supervised, and TestRandomRoots tries this tier too")
	}
	playFindings(t, containerSettings(), 2)
}

// TestEscapeContainerRoots tries some of the hostile images in tier container.
func TestEscapeContainerRoots(t *testing.T) {
	t.Parallel()
	needsRunc(t)
	hostileRoots(t, containerSettings(), 8*share)
}

// TestEscapeContainerRootsAsUser runs the tests of roots in tier container as a user; see TestAsUser.
func TestEscapeContainerRootsAsUser(t *testing.T) {
	t.Parallel()
	needsStatic(t)
	if testing.Short() {
		t.Skip("needs full-run: TestEscapeContainerAsUser runs the attackers, and TestRandomRootsAsUser tries this tier too")
	}
	asUser(t, "^TestEscapeContainer(Findings|Roots)$")
}
