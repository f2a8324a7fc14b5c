//go:build linux

package engine

import (
	"testing"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// TestTier_SeesPrograms checks that tier supervised always traces programs, tier gvisor only if they are recorded,
// and other tiers never.
func TestTier_SeesPrograms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tier string
		kept policy.Programs
		want bool
	}{
		{tierProcess, policy.ProgramsAll, false},
		{tierWorkspace, policy.ProgramsAll, false},
		{tierSupervised, policy.ProgramsAll, true},
		{tierSupervised, policy.ProgramsNone, true},
		{tierGVisor, policy.ProgramsAll, true},
		{tierGVisor, policy.ProgramsSummary, true},
		{tierGVisor, policy.ProgramsNone, false},
	} {
		rec, kept := meta.Sandbox{}, policy.Evidence{Programs: policy.Said[policy.Programs]{Value: c.kept}}
		rec.Tier = c.tier
		if got := tracesPrograms(&rec, kept); got != c.want {
			t.Errorf("%s, %s: %v", c.tier, c.kept, got)
		}
	}
}
