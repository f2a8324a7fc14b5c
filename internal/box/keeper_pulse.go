//go:build linux && (amd64 || arm64)

package box

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pulse is how long the processes of a box had run when it was taken. While none
// of them has run longer, and no command was started, no process has run: a new
// one comes from one of them. Comparing costs a system call for each, and nobody
// else is woken.
type pulse struct {
	spawns uint64
	times  map[int]int64
}

// mostPulse is how many processes are looked at one by one.
const mostPulse = 64

// pulse takes it; the zero one, which has never stood still, when that is
// impossible or processes come and go.
func (k *keeper) pulse() pulse {
	if !k.config.Confined() {
		return pulse{}
	}
	p := pulse{spawns: k.spawns.Load(), times: map[int]int64{}}
	pids := descendants(k.init.Pid)
	for _, pid := range pids {
		t, ok := ranFor(pid)
		if !ok {
			return pulse{}
		}
		p.times[pid] = t
	}
	if len(pids) > mostPulse || !slices.Equal(pids, descendants(k.init.Pid)) {
		return pulse{}
	}
	return p
}

// still reports whether no process has run since p was taken.
func (k *keeper) still(p pulse) bool {
	if p.times == nil || p.spawns != k.spawns.Load() {
		return false
	}
	for pid, before := range p.times {
		if now, ok := ranFor(pid); !ok || now != before {
			return false
		}
	}
	return true
}

// ranFor is the processor time of a process with all its threads, by the clock of
// clock_getcpuclockid(3).
func ranFor(pid int) (int64, bool) {
	var ts unix.Timespec
	err := unix.ClockGettime(^int32(pid)<<3|2, &ts)
	return ts.Nano(), err == nil
}

// descendants are the processes below one, in the order in which they are found;
// some may be missing while others end. There are mostPulse, or a few more, of many.
func descendants(pid int) (pids []int) { return below(pid, mostPulse) }

// allDescendants are descendants, however many there are.
func allDescendants(pid int) []int { return below(pid, math.MaxInt) }

func below(pid, most int) (pids []int) {
	for i := -1; i < len(pids) && len(pids) <= most; i++ {
		if i >= 0 {
			pid = pids[i]
		}
		threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
		for _, t := range threads {
			list, _ := os.ReadFile(t)
			for f := range strings.FieldsSeq(string(list)) {
				if kid, err := strconv.Atoi(f); err == nil {
					pids = append(pids, kid)
				}
			}
		}
	}
	return pids
}
