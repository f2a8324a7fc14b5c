//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The sandbox's kernel starts in a root that contains only its binary, so these tests need a static one: CGO_ENABLED=0.
// They do not run under the race detector, which needs cgo and uses memory that gVisor must map itself.

func TestGvisor(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierGvisor, Config: gvisorConfig})
}

func gvisorConfig(t testing.TB) plan.Config {
	c := supervised(t)
	c.Tier = plan.TierGvisor
	return c
}
