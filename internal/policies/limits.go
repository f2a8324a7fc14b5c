//go:build linux

package policies

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// limitsOf returns the limits of a policy for a record.
func limitsOf(p policy.Policy) wire.Limits {
	l := p.Limits
	return wire.Limits{Memory: l.MemoryBytes, Pids: l.PIDs, Disk: l.DiskBytes, MilliCPUs: l.MilliCPUs,
		TimeMS: int64(l.Time / time.Millisecond), Output: l.OutputBytes, Files: l.OpenFiles}
}

// limitable refuses limits that this host cannot enforce in a tier. If only weaker means exist, a box reports that
// when it starts; drivers check the disk limit.
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
