//go:build linux && (amd64 || arm64)

package guest

import (
	"encoding/binary"
	"hash/fnv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/procs"
)

// clock returns a value that differs from an earlier one if any process of the box has run in between, and so may have
// changed a file in any way.
func (d *daemon) clock() (uint64, error) {
	sum := fnv.New64a()
	add := func(a, b uint64) {
		var buf [16]byte
		binary.LittleEndian.PutUint64(buf[:8], a)
		binary.LittleEndian.PutUint64(buf[8:], b)
		_, _ = sum.Write(buf[:])
	}
	add(0, d.begun) // commands that started and exited
	if d.childless() {
		return sum.Sum64(), nil
	}
	pids, err := d.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		var ts unix.Timespec
		if unix.ClockGettime(processClock(pid), &ts) != nil {
			continue // the process has ended: its waiting parent has run, or init reaps it
		}
		add(uint64(pid), uint64(ts.Nano()))
	}
	return sum.Sum64(), nil
}

// pids lists the processes of the sandbox.
func (d *daemon) pids() ([]int, error) {
	if d.outer == 0 {
		return procs.PIDs(d.self)
	}
	list, err := d.scan()
	pids := make([]int, len(list))
	for i, p := range list {
		pids[i] = p.PID
	}
	return pids, err
}

// processClock returns the clock of the processor time of a process with all its threads, as clock_getcpuclockid(3)
// computes it. The clock counts nanoseconds, and needs no read of /proc for every thread.
func processClock(pid int) int32 { return ^int32(pid)<<3 | 2 }
