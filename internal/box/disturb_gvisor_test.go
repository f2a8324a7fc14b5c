//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/plan"
)

// TestDisturbed_Gvisor has calls of the keeper fail, of the conductor, and of gVisor's kernel
// and its server of files while they are set up.
func TestDisturbed_Gvisor(t *testing.T) {
	t.Parallel()
	disturbAll(t, func(t testing.TB) plan.Config {
		c := gvisorConfig(t)
		c.Limits = disturbedLimits
		if !c.Caller.Root { // has no controllers, unless they are delegated
			c.Limits.Memory, c.Limits.Pids = 0, 0
		}
		c.Phases = []plan.Phase{
			phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, methods: [GET]}]")}
		return c
	})
}
