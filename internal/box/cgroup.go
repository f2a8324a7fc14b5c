//go:build linux && (amd64 || arm64)

package box

import "github.com/coppice-dev/coppice/internal/box/plan"

// cgroup is the box's own control group. The nil one does nothing.
type cgroup struct {
	facts   plan.CgroupFacts
	threads int // cgroup.threads of the group that commands are in
}

func newCgroup(plan.Config) *cgroup { return nil }

func (g *cgroup) remove() {}
