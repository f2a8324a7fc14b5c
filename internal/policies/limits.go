//go:build linux

package policies

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// limitsOf gives the limits of a policy as a record has them.
func limitsOf(p policy.Policy) wire.Limits {
	l := p.Limits
	return wire.Limits{Memory: l.MemoryBytes, Pids: l.PIDs, Disk: l.DiskBytes, MilliCPUs: l.MilliCPUs,
		TimeMS: int64(l.Time / time.Millisecond), Output: l.OutputBytes, Files: l.OpenFiles}
}

// limitable refuses limits that no box of a tier could be held to here. What there are
// weaker ways to, a box tells of when it starts; drivers answer for the disk.
func (s *Policies) limitable(l policy.Limits, tier string) error {
	switch {
	case l == policy.Limits{}:
		return nil
	case tier == workspace:
		return fault.New(fault.Unsupported, "tier workspace does not support limits").
			WithHint("use --tier process, or omit --limit")
	case l.MilliCPUs > 0:
		return s.config.CanLimitCPU()
	}
	return nil
}
