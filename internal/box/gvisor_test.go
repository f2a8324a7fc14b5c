//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// A sandbox's own kernel is started in a root with the binary alone, so these tests are of
// a static one: CGO_ENABLED=0. They are run apart from the race detector, which needs cgo,
// and whose memory gVisor could not lay its own into.

func TestGvisor(t *testing.T) {
	boxtest.Run(t, boxtest.Tier{Name: plan.TierGvisor, Config: gvisorConfig})
}

func gvisorConfig(t testing.TB) plan.Config {
	c := supervised(t)
	c.Tier = plan.TierGvisor
	return c
}
