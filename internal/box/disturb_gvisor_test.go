//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/plan"
)

// TestDisturbed_Gvisor makes calls fail in the keeper, in the conductor, and in gVisor's kernel and its file server,
// while they set up a sandbox.
func TestDisturbed_Gvisor(t *testing.T) {
	t.Parallel()
	disturbAll(t, func(t testing.TB) plan.Config {
		c := gvisorConfig(t)
		c.Limits = disturbedLimits
		if !c.Caller.Root { // there are no controllers unless they are delegated
			c.Limits.Memory, c.Limits.Pids = 0, 0
		}
		c.Phases = []plan.Phase{
			phaseOf(t, time.Time{}, "version: 1\nnetwork:\n  allow: [{host: web.example, methods: [GET]}]")}
		return c
	})
}
