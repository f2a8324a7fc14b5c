//go:build linux && (amd64 || arm64) && !cgo

package box_test

import (
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
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

// TestGvisor_TimeoutEndsOnlyItsCommand ends many commands whose processes fork all the time. Init must signal none but
// theirs, also when a process is reaped while it is listed.
func TestGvisor_TimeoutEndsOnlyItsCommand(t *testing.T) {
	t.Parallel()
	b := gvisorTier.Start(t)
	forks := wire.ExecRequest{TimeoutMS: 100,
		Cmd: []string{"sh", "-c", "trap '' TERM; while :; do (:)& (:)& (:)& wait; done"}}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			for range 3 {
				if r := b.Do(t, forks); r.Exit.Code != 124 {
					t.Errorf("%+v", r.Exit)
				}
			}
		})
	}
	all.Wait()
}
