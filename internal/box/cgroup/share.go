//go:build linux && (amd64 || arm64)

package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// share enforces one limit of a box with a controller of version 1, on hosts where version 2 lacks that controller.
type share struct {
	path   string
	counts string // the file that counts how often the limit was reached, at key
	key    string
}

// Shares are the control groups of version 1 of a box, by controller. A nil Shares does nothing.
type Shares map[string]*share

// NewShares creates a group for each limit that version 2 does not enforce, if the host has its controller. Any other
// failure is an error, as in New.
func NewShares(c plan.Config, have plan.CgroupFacts) (all Shares, err error) {
	if c.NoCgroup || !c.Caller.Root {
		return nil, nil
	}
	all = Shares{}
	defer func() {
		if err != nil {
			all.Remove()
		}
	}()
	if c.Limits.MilliCPUs > 0 && !have.CPU {
		quota, period := bandwidth(c.Limits.MilliCPUs)
		if _, err := all.add(c, "cpu", share{}, "cpu.cfs_period_us", period, "cpu.cfs_quota_us", quota); err != nil {
			return nil, err
		}
	}
	if n := c.Limits.Memory; n > 0 && !have.Memory {
		s, err := all.add(c, "memory", share{counts: "memory.oom_control", key: "oom_kill"}, "memory.limit_in_bytes",
			strconv.FormatInt(n, 10))
		if err != nil {
			return nil, err
		}
		if s != nil { // only where swap is counted
			if _, err := delegated(s.write("memory.memsw.limit_in_bytes", strconv.FormatInt(n, 10))); err != nil {
				return nil, fault.Wrap(err, "limit the sandbox's memory with swap")
			}
		}
	}
	if n := c.Limits.Pids; n > 0 && !have.Pids && c.Tier != plan.TierGvisor {
		if _, err := all.add(c, "pids", share{counts: "pids.events", key: "max"}, "pids.max",
			strconv.FormatInt(n+plan.OwnTasks, 10)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// add creates the group of one controller, and writes to its files. It returns nil if the host lacks the controller or
// this process may not use it.
func (all Shares) add(c plan.Config, controller string, s share, files ...string) (*share, error) {
	parent, err := shareParent(controller)
	if err != nil || parent == "" {
		return nil, err
	}
	s.path = ownPath(parent, c)
	if made, err := makeOwnGroup(s.path, c); err != nil || !made {
		return nil, fault.Wrap(err, "create the sandbox's control group for %s", controller)
	}
	for i := 0; i < len(files); i += 2 {
		if done, err := delegated(s.write(files[i], files[i+1])); err != nil || !done {
			removeOwn(s.path)
			return nil, fault.Wrap(err, "limit the sandbox's %s", controller)
		}
	}
	all[controller] = &s
	return &s, nil
}

// shareParent finds the directory in which the groups of a controller are created, or "" if the host lacks it. Those of
// memory and tasks are below the daemon's own group, so that its limits also bound the boxes.
func shareParent(controller string) (string, error) {
	mount, err := groupMount("cgroup", controller)
	if err != nil || mount == "" {
		return "", err
	}
	if controller != "cpu" {
		own, err := ownGroup(controller)
		if err != nil || own == "" {
			return "", err
		}
		return filepath.Join(mount, own), nil
	}
	parent := filepath.Join(mount, "coppice")
	if made, err := makeGroup(parent); err != nil || !made {
		return "", err
	}
	return parent, nil
}

// Facts returns f with the limits that the shares enforce.
func (all Shares) Facts(f plan.CgroupFacts) plan.CgroupFacts {
	f.CPU = f.CPU || all["cpu"] != nil
	f.Memory = f.Memory || all["memory"] != nil
	f.Pids = f.Pids || all["pids"] != nil
	return f
}

// Hits returns the counts of all groups, as Group.Hits.
func (all Shares) Hits() (h Hits) {
	if s := all["memory"]; s != nil {
		h.memory = count(filepath.Join(s.path, s.counts), s.key)
	}
	if s := all["pids"]; s != nil {
		h.pids = count(filepath.Join(s.path, s.counts), s.key)
	}
	return h
}

// bandwidth returns the quota of processor time in each period, in microseconds. The kernel accepts no quota below a
// millisecond.
func bandwidth(milli int64) (quota, period string) {
	const usual, long = 100_000, 1_000_000
	milli = min(milli, 10_000_000) // more processors than Linux supports
	if milli < 10 {
		return strconv.FormatInt(milli*long/1000, 10), strconv.Itoa(long)
	}
	return strconv.FormatInt(milli*usual/1000, 10), strconv.Itoa(usual)
}

func (s *share) write(name, value string) error {
	return os.WriteFile(filepath.Join(s.path, name), []byte(value), 0)
}

// Take moves a process into the groups; its future children start there.
func (all Shares) Take(pid int) error {
	for controller, s := range all {
		if err := s.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fault.Wrap(err, "enforce the sandbox's limit of %s", controller)
		}
	}
	return nil
}

// Remove removes the groups, whose processes have exited or are exiting. It may be called twice.
func (all Shares) Remove() {
	for _, s := range all {
		removeOwn(s.path)
	}
}

// CanLimitCPU tests whether a daemon, of real root or not, can limit the processor time of a box. If not, it returns an
// error with a hint.
func CanLimitCPU(root bool) error {
	c := plan.Config{ID: "try" + strconv.FormatInt(time.Now().UnixNano(), 36), Caller: plan.Caller{Root: root},
		Limits: plan.Limits{MilliCPUs: 1000}}
	g, err := New(c)
	if err != nil {
		return err
	}
	if g != nil {
		able := g.Facts.CPU
		g.Remove()
		if able {
			return nil
		}
	}
	all, err := NewShares(c, plan.CgroupFacts{})
	if err != nil {
		return err
	}
	defer all.Remove()
	if all["cpu"] != nil {
		return nil
	}
	return plan.CPULack()
}
