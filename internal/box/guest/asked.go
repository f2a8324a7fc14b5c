//go:build linux && (amd64 || arm64)

package guest

import (
	"strconv"
	"time"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
)

// ask is an execve(2) of which it is not known what came of it.
type ask struct {
	notify.Execution
	dir   []byte
	at    time.Time
	check time.Time     // when to look what the process is
	again time.Duration // and how long after that
	told  uint64        // the id under which it is in the record already, or 0
}

const (
	// maxAsks is how many a process has of its threads; more are told at once.
	maxAsks = 16
	// patience is how long a process is what it was before its ask is told as such.
	// It goes on being looked at, less and less often.
	patience = time.Second
	rarely   = time.Hour
)

// asked is notify.Options.Asked.
func (p *programs) asked(x notify.Execution) {
	if len(x.Args) > MaxProgramArgs {
		x.Args, x.Cut = x.Args[:MaxProgramArgs], true
	}
	now := time.Now()
	n := ask{Execution: x, dir: readLink("/proc/" + strconv.Itoa(x.TID) + "/cwd"), at: now, check: now.Add(pause), again: pause}
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

// unasked is notify.Options.Unasked.
func (p *programs) unasked(tid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.newest; a != nil && len(a.asks) > 0 && a.asks[len(a.asks)-1].TID == tid {
		p.keepAsks(a, a.asks[:len(a.asks)-1])
	}
	p.newest = nil
}

// began is notify.Options.Began.
func (p *programs) began(tid int) {
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
	// It has executed the file that it was already. While it waits it executes nothing;
	// but what another thread asked for may still be under way.
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

// settleDue looks at the processes whose time has come, and says when the next one's will;
// 0: there is none. p.mu is held.
func (p *programs) settleDue(now time.Time) (next time.Duration) {
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
				ok = false // later
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

// halfMade reports whether the kernel has not put down the arguments of a program yet,
// which it does last. Where none may be had, none ever are (before Linux 5.18).
func halfMade(pid int) bool {
	var one [1]byte
	return len(procs.Cmdline(pid, one[:])) == 0
}

// postpone says when to look at a process again. What has been nothing but asked for long is told
// so. p.mu is held.
func (p *programs) postpone(a *alive, now time.Time) (due time.Time) {
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

// settle tells what came of a process's asks, as far as that is clear: it is another file,
// so that one of them came about and all are over; or thread tid goes on, so that its own
// are. One that is gone is end's. p.mu is held.
func (p *programs) settle(a *alive, tid int, file fileID, there bool) {
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

// keepAsks leaves a process with asks. p.mu is held.
func (p *programs) keepAsks(a *alive, asks []ask) {
	if a.asks = asks; len(asks) == 0 {
		a.asks = nil
		delete(p.waiting, a.pid)
	}
}

// tellBegun tells that a process is a program now, which it asked for, and gives its id.
// p.mu is held.
func (p *programs) tellBegun(a *alive, x ask, file fileID) uint64 {
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

// tellAsked tells that a process asked for a program, and gives its id. p.mu is held.
func (p *programs) tellAsked(a *alive, x ask, lost bool) uint64 {
	n := p.program(a, x)
	n.Asked, n.Lost = true, lost
	n.Exe, n.Args = []byte(x.Path), x.Args
	if x.Cut {
		n.Cut = -1
	}
	p.add(initlink.ProgramEvent{Began: n})
	return n.ID
}

// program is what both have in common.
func (p *programs) program(a *alive, x ask) *initlink.Program {
	return &initlink.Program{ID: p.begun.Add(1), PID: a.pid, PPID: a.ppid, Parent: a.parent, Exec: a.exec, Dir: x.dir, Started: x.at}
}
