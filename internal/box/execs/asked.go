//go:build linux && (amd64 || arm64)

package execs

import (
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
)

// ask is an execve(2) whose result is not yet known.
type ask struct {
	notify.Execution
	dir   []byte
	at    time.Time
	check time.Time     // when to check which file the process executes
	again time.Duration // until the check after that
	told  uint64        // the id of the program in the record, or 0 if it was not recorded yet
}

const (
	// maxAsks is how many asks of the threads of a process may be open. Further ones are recorded as asked for at once.
	maxAsks = 16
	// patience is how long a process may keep executing the same file before its ask is recorded as asked for. The
	// process is still checked after that, at growing intervals of up to rarely.
	patience = time.Second
	rarely   = time.Hour
)

// Asked is notify.Options.Asked.
func (p *Recorder) Asked(x notify.Execution) {
	if len(x.Args) > MaxProgramArgs {
		x.Args, x.Cut = x.Args[:MaxProgramArgs], true
	}
	now := time.Now()
	n := ask{Execution: x, dir: readLink("/proc/" + strconv.Itoa(x.TID) + "/cwd"), at: now,
		check: now.Add(pause), again: pause}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = nil
	a := p.process(x.TID)
	if a == nil {
		a = &alive{pid: x.TID, fd: -1}
	}
	file, ok := fileOf(a.pid)
	if len(a.asks) > 0 {
		p.settle(a, x.TID, file, ok)
	}
	a.file = file
	if a.fd < 0 || len(a.asks) == maxAsks {
		p.tellAsked(a, n, true)
		p.wake()
		return
	}
	a.asks = append(a.asks, n)
	p.waiting[a.pid], p.newest = a, a
	p.wake()
}

// Unasked is notify.Options.Unasked.
func (p *Recorder) Unasked(tid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.newest; a != nil && len(a.asks) > 0 && a.asks[len(a.asks)-1].TID == tid {
		p.keepAsks(a, a.asks[:len(a.asks)-1])
	}
	p.newest = nil
}

// Began is notify.Options.Began.
func (p *Recorder) Began(tid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.waiting[tid]
	if a == nil {
		return
	}
	file, ok := fileOf(a.pid)
	if !ok {
		return
	}
	if file != a.file {
		p.settle(a, tid, file, ok)
		return
	}
	// The process has executed the same file again. It executes nothing while it waits for init, but an execve of
	// another thread may still be in progress.
	last := a.asks[len(a.asks)-1]
	if last.told == 0 {
		last.told = p.tellBegun(a, last, file)
	}
	if last.TID == tid {
		p.keepAsks(a, nil)
		return
	}
	for _, x := range a.asks[:len(a.asks)-1] {
		if x.told == 0 {
			p.tellAsked(a, x, true)
		}
	}
	p.keepAsks(a, []ask{last})
}

// settleDue checks the processes whose check is due. It returns how long it is until the next
// check, or 0 if there is none. p.mu is held.
func (p *Recorder) settleDue(now time.Time) (next time.Duration) {
	for _, a := range p.waiting {
		due := a.asks[0].check
		for _, x := range a.asks {
			if x.check.Before(due) {
				due = x.check
			}
		}
		if !due.After(now) {
			file, ok := fileOf(a.pid)
			if ok && file != a.file && now.Sub(a.asks[0].at) < patience && halfMade(a.pid) {
				ok = false // check again later
			}
			p.settle(a, 0, file, ok)
			if len(a.asks) == 0 {
				continue
			}
			due = p.postpone(a, now)
		}
		if wait := max(due.Sub(now), time.Millisecond); next == 0 || wait < next {
			next = wait
		}
	}
	return next
}

// halfMade reports whether the kernel has not yet recorded the arguments of a program, the last step of an execve(2).
// Before Linux 5.18 a program may have no arguments at all.
func halfMade(pid int) bool {
	var one [1]byte
	return len(procs.Cmdline(pid, one[:])) == 0
}

// postpone returns when to check a process again. It records asks that are older than patience as
// asked for. p.mu is held.
func (p *Recorder) postpone(a *alive, now time.Time) (due time.Time) {
	for i := range a.asks {
		x := &a.asks[i]
		if !x.check.After(now) {
			x.again = min(2*x.again, rarely)
			x.check = now.Add(x.again)
		}
		if x.told == 0 && now.Sub(x.at) >= patience {
			x.told = p.tellAsked(a, *x, true)
		}
		if i == 0 || x.check.Before(due) {
			due = x.check
		}
	}
	return due
}

// settle records the results of a process's asks as far as they are known. If the process executes another file, the
// last ask succeeded and all others are over. If thread tid runs, its own asks are over. The asks of
// a process that has ended stay for end. p.mu is held.
func (p *Recorder) settle(a *alive, tid int, file fileID, there bool) {
	if there && file != a.file {
		last := len(a.asks) - 1
		for _, x := range a.asks[:last] {
			if x.told == 0 {
				p.tellAsked(a, x, true)
			}
		}
		p.tellBegun(a, a.asks[last], file)
		p.keepAsks(a, nil)
		return
	}
	var left []ask
	for _, x := range a.asks {
		if x.TID != tid {
			left = append(left, x)
		} else if x.told == 0 {
			p.tellAsked(a, x, true)
		}
	}
	p.keepAsks(a, left)
}

// keepAsks replaces the asks of a process. p.mu is held.
func (p *Recorder) keepAsks(a *alive, asks []ask) {
	if a.asks = asks; len(asks) == 0 {
		a.asks = nil
		delete(p.waiting, a.pid)
	}
}

// tellBegun records that a process executes the program of an ask, and returns its id. p.mu is
// held.
func (p *Recorder) tellBegun(a *alive, x ask, file fileID) uint64 {
	dir := "/proc/" + strconv.Itoa(a.pid) + "/"
	n := p.program(a, x)
	n.Before = a.id
	n.Exe = readLink(dir + "exe")
	n.Args, n.Cut = arguments(a.pid)
	if a.id != 0 {
		p.add(initlink.ProgramEvent{Ended: &initlink.ProgramEnded{ID: a.id, At: x.at, Next: n.ID}})
	}
	a.id, a.file = n.ID, file
	p.add(initlink.ProgramEvent{Began: n})
	p.labels.Note(n, func() int { return p.pidOf(n) })
	return n.ID
}

// tellAsked records that a process asked for a program, and returns its id. p.mu is held.
func (p *Recorder) tellAsked(a *alive, x ask, lost bool) uint64 {
	n := p.program(a, x)
	n.Asked, n.Lost = true, lost
	n.Exe, n.Args = []byte(x.Path), x.Args
	if x.Cut {
		n.Cut = -1
	}
	p.add(initlink.ProgramEvent{Began: n})
	return n.ID
}

// program returns a new program with the fields that tellBegun and tellAsked have in common.
func (p *Recorder) program(a *alive, x ask) *initlink.Program {
	return &initlink.Program{ID: p.begun.Add(1), PID: a.pid, PPID: a.ppid, Parent: a.parent, Exec: a.exec,
		Dir: x.dir, Started: x.at}
}
