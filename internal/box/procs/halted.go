//go:build linux && (amd64 || arm64)

package procs

import (
	"os"
	"slices"
	"strings"
)

// HaltedOrGone reads the process again and reports whether it is halted or has ended.
func (p Stat) HaltedOrGone() bool {
	q, ok := readStat(p.dir() + "/stat")
	q.inProc = p.inProc
	return !ok || q.Dead() || q.Halted()
}

// Stopped reports whether every thread of the process is stopped by a signal.
func (p Stat) Stopped() bool { return p.state == 'T' && p.Halted() }

// Halted reports whether no thread of the process can run.
func (p Stat) Halted() bool {
	dir := p.dir()
	if p.threads <= 1 {
		return halted(p.state, dir)
	}
	tasks, err := os.ReadDir(dir + "/task")
	if err != nil {
		return false
	}
	for _, t := range tasks {
		task := dir + "/task/" + t.Name()
		if q, ok := readStat(task + "/stat"); ok && !halted(q.state, task) {
			return false
		}
	}
	return true
}

// halted reports whether a task in that state cannot run until another process lets it: it is stopped or dead, or waits
// for a vfork child or for init's answer to a notification. The kernel reports the last two as uninterruptible sleep;
// only wchan distinguishes them from other sleeps.
func halted(state byte, dir string) bool {
	switch state {
	case 'T', 't', 'Z', 'X':
		return true
	case 'D':
		b, err := os.ReadFile(dir + "/wchan")
		if err != nil {
			return false
		}
		// Compilers append suffixes to function names: ".isra.0", ".constprop.0".
		where, _, _ := strings.Cut(string(b), ".")
		return slices.Contains(heldIn, where)
	}
	return false
}

// Held reports whether a task, by its id in this process's /proc, has ended, is frozen by its control group, or waits
// for init.
func Held(tid string) bool {
	dir := "/proc/" + tid
	p, ok := readStat(dir + "/stat")
	if !ok || p.state != 'S' && p.state != 'D' {
		return !ok || halted(p.state, dir)
	}
	return halted('D', dir)
}

// heldIn are the kernel functions in which a held task sleeps.
var heldIn = []string{"kernel_clone", "wait_for_vfork_done", "seccomp_do_user_notification", "__seccomp_filter",
	"do_freezer_trap", "get_signal"}
