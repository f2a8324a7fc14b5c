//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pulse is the accumulated run time of the processes of a box. If none of them has run longer and no command was
// started, no process has run: a new process is a child of one of them. A comparison costs one system call per process,
// and wakes no other process.
type pulse struct {
	spawns uint64
	times  map[int]int64
}

// mostPulse is how many processes are compared individually.
const mostPulse = 64

// pulse takes a pulse. If that is impossible, or if processes start or exit meanwhile, it returns the zero pulse, which
// equals no other.
func (k *keeper) pulse() pulse {
	if !k.config.Confined() {
		return pulse{}
	}
	p := pulse{spawns: k.spawns.Load(), times: map[int]int64{}}
	pids := k.commandsOf(mostPulse)
	for _, pid := range pids {
		t, ok := ranFor(pid)
		if !ok {
			return pulse{}
		}
		p.times[pid] = t
	}
	if len(pids) > mostPulse || !slices.Equal(pids, k.commandsOf(mostPulse)) {
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

// ranFor returns the processor time of a process with all its threads, from the clock of clock_getcpuclockid(3).
func ranFor(pid int) (int64, bool) {
	var ts unix.Timespec
	err := unix.ClockGettime(^int32(pid)<<3|2, &ts)
	return ts.Nano(), err == nil
}

// commandsOf returns the processes that run the content of the box: those below init. Below a
// conductor, these are those below its own children: the init of a container, or gVisor's processes, which are never
// idle.
func (k *keeper) commandsOf(most int) (pids []int) {
	if !k.config.Conducted() {
		return below(k.init.Pid, most)
	}
	for _, own := range children(k.init.Pid) {
		pids = append(pids, below(own, most)...)
	}
	return pids
}

// below returns the processes below a process, in the order in which they are found. Some may be missing while others
// exit. It returns about most of them if there are more.
func below(pid, most int) []int {
	pids := children(pid)
	for i := 0; i < len(pids) && len(pids) <= most; i++ {
		pids = append(pids, children(pids[i])...)
	}
	return pids
}

// children returns the processes that the threads of a process have started (proc_tid_children(5)). It does not list a
// thread's directory, for which the kernel would create all of its sixty entries.
func children(pid int) (pids []int) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, _ := os.ReadDir(tasks)
	for _, t := range threads {
		list, _ := os.ReadFile(tasks + "/" + t.Name() + "/children")
		for f := range strings.FieldsSeq(string(list)) {
			if kid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, kid)
			}
		}
	}
	return pids
}
