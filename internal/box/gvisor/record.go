//go:build linux && (amd64 || arm64)

package gvisor

import (
	"time"

	"github.com/coppice-dev/coppice/internal/box/execs"
	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// maxAlive is how many live processes are remembered. Programs of further ones are reported without an exit.
const maxAlive = 8192

// initPID is the sandbox's init. Its children are commands or orphans.
const initPID = 1

// record converts events of processes to programs. It is not safe for concurrent use.
type record struct {
	alive  map[int]*process
	last   uint64 // id of the last program
	labels execs.Labels
}

// process is a running process.
type process struct {
	id, parent uint64 // id of its program, or 0, and of its parent program
	exec       string // the exec from which it descends
}

func newRecord() *record { return &record{alive: map[int]*process{}} }

// cloned records a process that another one created.
func (r *record) cloned(e event) []initlink.ProgramEvent {
	out := r.gone(e.PID, time.Now(), nil) // its exit was lost
	r.keep(e.PID, r.below(e.Parent))
	return out
}

// below returns the state of a new child of a process.
func (r *record) below(parent int) *process {
	up := r.alive[parent]
	switch {
	case parent == initPID || up == nil:
		return &process{}
	case up.id == 0:
		return &process{parent: up.parent, exec: up.exec}
	}
	return &process{parent: up.id, exec: up.exec}
}

// keep remembers a process if there is room.
func (r *record) keep(pid int, p *process) bool {
	if len(r.alive) >= maxAlive && r.alive[pid] == nil {
		return false
	}
	r.alive[pid] = p
	return true
}

// began records that a process executes a program.
func (r *record) began(e event) (out []initlink.ProgramEvent) {
	p, kept := r.alive[e.PID], true
	if p == nil {
		p = r.below(e.Parent)
		kept = r.keep(e.PID, p)
	}
	r.last++
	n := &initlink.Program{
		ID: r.last, PID: e.PID, PPID: e.Parent, Parent: p.parent, Before: p.id, Exec: p.exec,
		Exe: e.Exe, Args: e.Args, Cut: e.Cut, Dir: e.Dir, Started: time.Unix(0, e.At), Lost: !kept,
	}
	if p.id != 0 {
		out = append(out, initlink.ProgramEvent{Ended: &initlink.ProgramEnded{ID: p.id, At: n.Started, Next: n.ID}})
	}
	p.id = n.ID
	r.labels.Note(n, func() int { return r.pidOf(n) })
	return append(out, initlink.ProgramEvent{Began: n})
}

// pidOf returns the pid of a program's parent.
func (r *record) pidOf(n *initlink.Program) int {
	for pid, p := range r.alive {
		if p.id == n.Parent {
			return pid
		}
	}
	return n.PPID
}

// gone records that a process has exited. A nil status means that it is not known how.
func (r *record) gone(pid int, at time.Time, status *uint32) (out []initlink.ProgramEvent) {
	if p := r.alive[pid]; p != nil && p.id != 0 {
		out = []initlink.ProgramEvent{{Ended: &initlink.ProgramEnded{ID: p.id, At: at, Status: status}}}
	}
	delete(r.alive, pid)
	return out
}

// forget records the exits that were lost. parents contains the running processes.
func (r *record) forget(parents map[int]int, at time.Time) (out []initlink.ProgramEvent) {
	for pid := range r.alive {
		if _, lives := parents[pid]; !lives {
			out = append(out, r.gone(pid, at, nil)...)
		}
	}
	return out
}

// resume records the processes of a resumed sandbox. Each belongs to the nearest command above it.
func (r *record) resume(parents map[int]int, commands map[int]string) {
	for pid := range parents {
		up := pid
		for range len(parents) {
			if commands[up] != "" || up <= initPID {
				break
			}
			up = parents[up]
		}
		if pid != initPID && r.alive[pid] == nil {
			r.keep(pid, &process{exec: commands[up]})
		}
	}
}
