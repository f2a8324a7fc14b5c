//go:build linux && (amd64 || arm64)

package escape_test

import (
	"os/exec"
	"testing"

	"github.com/coppice-dev/coppice/internal/plan"
)

// TestEscapeContainer runs the corpus in tier container, with runc.
func TestEscapeContainer(t *testing.T) {
	if _, err := exec.LookPath(runcAt); err != nil {
		t.Skip("needs runc: tier container is an OCI runtime's")
	}
	all := []sandbox{{"root/container", plan.UserRoot, plan.NetRules, true, false, plan.TierContainer}}
	if other := otherUser(); other != plan.UserMe { // an ordinary user has only root there
		all = append(all, sandbox{other + "/container", other, plan.NetRules, true, false, plan.TierContainer})
	}
	tryAll(t, all)
}

// TestEscapeContainerAsUser runs TestEscapeContainer as a user; see TestAsUser.
func TestEscapeContainerAsUser(t *testing.T) { asUser(t, "^TestEscapeContainer$") }

// runcAt is where Debian installs runc.
const runcAt = "/usr/sbin/runc"
