//go:build linux && (amd64 || arm64)

package box

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// share holds a box to a share of the processors by the cpu controller of version 1,
// on hosts where version 2 does not have that controller. The nil one does nothing.
type share struct {
	path string
}

// newShare makes the group; nil where none can be made.
func newShare(c plan.Config) *share {
	if c.NoCgroup || !c.Caller.Root {
		return nil
	}
	mount, err := groupMount("cgroup", "cpu")
	if err != nil {
		return nil
	}
	parent := filepath.Join(mount, "coppice")
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil
	}
	s := &share{path: filepath.Join(parent, "coppice-"+c.ID+"-"+strconv.Itoa(os.Getpid()))}
	if err := os.Mkdir(s.path, 0o755); err != nil {
		return nil
	}
	quota, period := bandwidth(c.Limits.MilliCPUs)
	if s.write("cpu.cfs_period_us", period) != nil || s.write("cpu.cfs_quota_us", quota) != nil {
		s.remove()
		return nil
	}
	return s
}

// bandwidth gives how many microseconds of processor time there are in how many of
// time. The kernel takes no quota below a millisecond.
func bandwidth(milli int64) (quota, period string) {
	const usual, long = 100_000, 1_000_000
	milli = min(milli, 10_000_000) // more processors than Linux knows
	if milli < 10 {
		return strconv.FormatInt(milli*long/1000, 10), strconv.Itoa(long)
	}
	return strconv.FormatInt(milli*usual/1000, 10), strconv.Itoa(usual)
}

func (s *share) write(name, value string) error {
	return os.WriteFile(filepath.Join(s.path, name), []byte(value), 0)
}

// take brings a process into the group, with all that it will start.
func (s *share) take(pid int) error {
	if s == nil {
		return nil
	}
	return fault.Wrap(s.write("cgroup.procs", strconv.Itoa(pid)), "hold the sandbox to its share of the processors")
}

// remove removes the group, whose processes are gone or going. It may be called twice.
func (s *share) remove() {
	if s == nil {
		return
	}
	removeGroup(s.path)
}

// CanLimitCPU tries whether a box can be held to a share of the processors, by a daemon
// of real root or not. Where it cannot, the error says what mends that.
func CanLimitCPU(root bool) error {
	c := plan.Config{ID: "try" + strconv.FormatInt(time.Now().UnixNano(), 36), Caller: plan.Caller{Root: root}, Limits: plan.Limits{MilliCPUs: 1000}}
	if g := newCgroup(c); g != nil {
		able := g.facts.CPU
		g.remove()
		if able {
			return nil
		}
	}
	if s := newShare(c); s != nil {
		s.remove()
		return nil
	}
	return plan.CPULack()
}
