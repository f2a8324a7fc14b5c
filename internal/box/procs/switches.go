//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"os"
	"strconv"
)

// Switches returns, for each thread of the processes by its id in /proc, how often it has left a processor. A thread
// that is halted and whose number is that of an earlier call has not run since: a thread that runs and halts again
// leaves a processor. A thread that ended in the meantime is omitted.
func (l List) Switches() map[int]uint64 {
	counts := map[int]uint64{}
	for _, p := range l {
		tasks, err := os.ReadDir(p.dir() + "/task")
		if err != nil {
			continue
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			if b, err := os.ReadFile(p.dir() + "/task/" + t.Name() + "/status"); err == nil {
				counts[tid] = switches(b)
			}
		}
	}
	return counts
}

// switches returns the sum of the voluntary and other context switches of a status file (proc_pid_status(5)).
func switches(status []byte) (n uint64) {
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			count, _ := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 64)
			n += count
		}
	}
	return n
}
