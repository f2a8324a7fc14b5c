//go:build linux && (amd64 || arm64)

package guest

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Bounds of what is kept of programs. What is beyond is counted.
const (
	// MaxProgramArgs is how many bytes of a program's arguments are kept, and
	// MaxProgramPath of its own path and its directory's.
	MaxProgramArgs = 4 << 10
	MaxProgramPath = unix.PathMax
	// maxPending bounds the events, and their bytes, that the keeper has not taken.
	maxPending      = 8192
	maxPendingBytes = 4 << 20
	// maxBatch is how many bytes travel in a message.
	maxBatch = 256 << 10
	// maxAlive is how many processes are remembered while they live. What the others
	// execute is told as it was asked for, without an end.
	maxAlive = limit.ProgramsAlive
	// maxUp is how many processes up a program's parent is looked for.
	maxUp = 16
)

// programs records the programs of a box, from what notify tells to the keeper. A nil one
// records nothing.
//
// What a process asks for (asked.go) is one of these in the end:
//
//	begun  it is another file than before, or made the call with which programs begin:
//	       file, arguments and directory are read of /proc then
//	asked  it asked again, is gone, or has stayed what it was: the sandbox's own word
type programs struct {
	link  *initlink.Link
	child func(pid int) bool // it is about to become a command
	ends  *ends
	begun atomic.Uint64 // the last id
	idle  atomic.Bool   // watch waits for somebody to wake it
	later *time.Timer   // wakes it for what was asked and has not come about

	mu      sync.Mutex
	exec    string                  // guarded by mu; of the command that is being started
	alive   map[int]*alive          // guarded by mu; by pid
	waiting map[int]*alive          // guarded by mu; those of them with asks
	newest  *alive                  // guarded by mu; whose ask came last; nil: it was told already
	pending []initlink.ProgramEvent // guarded by mu
	bytes   int                     // guarded by mu; of pending
	dropped uint64                  // guarded by mu; events since those that were told
	labels  Labels                  // guarded by mu

	telling sync.Mutex // held while events are sent, so that they keep their order; before mu
}

// alive is a process that executed something, or asked for it.
type alive struct {
	id, parent uint64 // of the program that it is known to be, or 0, and of what is above it
	exec       string
	pid, ppid  int
	fd         int // its pidfd
	file       fileID
	asks       []ask // oldest first
}

func newPrograms(link *initlink.Link, child func(pid int) bool) (*programs, error) {
	e, err := newEnds()
	p := &programs{link: link, child: child, ends: e, alive: map[int]*alive{}, waiting: map[int]*alive{}}
	p.later = time.AfterFunc(time.Hour, p.wake)
	p.later.Stop()
	return p, err
}

// starting names the command that is started next.
func (p *programs) starting(exec string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.exec = exec
	p.mu.Unlock()
}

// process gives what is known of the process of a thread, which stands still; nil where
// there is no room, or the thread is gone. p.mu is held.
func (p *programs) process(tid int) *alive {
	if a := p.living(tid); a != nil {
		return a
	}
	pid, fd := tid, procs.OpenPidfd(tid)
	if fd < 0 { // it is not the first of its process
		if pid = procs.ProcessOf(tid); pid == tid {
			return nil
		}
		if a := p.living(pid); a != nil {
			return a
		}
		if fd = procs.OpenPidfd(pid); fd < 0 {
			return nil
		}
	}
	a := &alive{pid: pid, fd: fd}
	a.ppid, _ = procs.ParentByPidfd(fd, pid)
	if p.child(pid) {
		a.exec = p.exec
	} else if above := p.above(a.ppid); above != nil {
		a.parent, a.exec = above.id, above.exec
		if above.id == 0 { // it has asked, and not become anything
			a.parent = above.parent
		}
	}
	if len(p.alive) >= maxAlive || p.ends.add(fd, pid) != nil {
		unix.Close(fd)
		a.fd = -1
		return a
	}
	p.alive[pid] = a
	return a
}

// living gives what is known of the process that has a number now. p.mu is held.
func (p *programs) living(pid int) *alive {
	a := p.alive[pid]
	if a == nil {
		return nil
	}
	// Its number is another's only when it is gone.
	if unix.PidfdSendSignal(a.fd, 0, nil, 0) == unix.ESRCH {
		p.end(a)
		return nil
	}
	return a
}

// above finds the nearest known process at or above one. p.mu is held.
func (p *programs) above(pid int) *alive {
	for range maxUp {
		if pid <= 1 {
			return nil
		}
		if a := p.living(pid); a != nil {
			return a
		}
		fd := procs.OpenPidfd(pid)
		if fd < 0 {
			return nil
		}
		up, ok := procs.ParentByPidfd(fd, pid)
		unix.Close(fd)
		if !ok {
			return nil
		}
		pid = up
	}
	return nil
}

// end notes that a process has ended, and forgets it. What it asked for last may have come
// about: if it was nothing before, its end is that one's. p.mu is held.
func (p *programs) end(a *alive) {
	if status, ok := procs.ExitStatus(a.fd, a.pid); ok {
		p.endWith(a, &status)
	} else {
		p.endWith(a, nil)
	}
}

// reaped says how a child of init ended, which has just been waited for.
func (p *programs) reaped(pid int, status uint32) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.alive[pid]; a != nil {
		p.endWith(a, &status)
	}
}

// endWith is end, of a status that is known already; nil: it is not. p.mu is held.
func (p *programs) endWith(a *alive, status *uint32) {
	e := initlink.ProgramEnded{At: time.Now(), Status: status}
	for i, x := range a.asks {
		if x.told == 0 {
			ends := a.id == 0 && i == len(a.asks)-1
			id := p.tellAsked(a, x, !ends)
			if ends {
				a.id = id
			}
		}
	}
	if e.ID = a.id; e.ID != 0 {
		p.add(initlink.ProgramEvent{Ended: &e})
	}
	p.ends.remove(a.fd)
	delete(p.alive, a.pid)
	delete(p.waiting, a.pid)
}

// add puts an event in line. p.mu is held.
func (p *programs) add(e initlink.ProgramEvent) {
	if len(p.pending) >= maxPending || p.bytes >= maxPendingBytes {
		p.dropped++
		return
	}
	p.pending = append(p.pending, e)
	p.bytes += sizeOf(e)
}

// sizeOf returns about how many bytes of memory an event takes.
func sizeOf(e initlink.ProgramEvent) int {
	if e.Began == nil {
		return 64
	}
	return 192 + len(e.Began.Exe) + len(e.Began.Args) + len(e.Began.Dir)
}

// tell sends the keeper what is known by now: all that began, and all that ended. due says
// when to look again at what was asked for; 0: nothing was.
func (p *programs) tell() (due time.Duration, err error) {
	if p == nil {
		return 0, nil
	}
	p.telling.Lock()
	defer p.telling.Unlock()
	ended := p.ends.ready()
	p.mu.Lock()
	for fd, pid := range ended {
		if a := p.alive[pid]; a != nil && a.fd == fd {
			p.end(a)
		}
	}
	due = p.settleDue(time.Now())
	events, dropped := p.pending, p.dropped
	p.pending, p.bytes, p.dropped = nil, 0, 0
	p.mu.Unlock()
	for len(events) > 0 || dropped > 0 {
		n, size := 0, 0
		for n < len(events) && size < maxBatch {
			size += sizeOf(events[n])
			n++
		}
		if err := p.link.Send(initlink.MsgPrograms, initlink.Programs{Events: events[:n], Dropped: dropped}); err != nil {
			return 0, err
		}
		events, dropped = events[n:], 0
	}
	return due, nil
}

// pause is how long events gather before they are told, and so how precisely the time
// of an end is known.
const pause = 10 * time.Millisecond

// watch tells of programs as they begin and end, for as long as this process lives. It is
// woken up once in a pause at most, and never while nothing begins or ends.
func (p *programs) watch() {
	for {
		p.idle.Store(true)
		if p.any() {
			p.wake()
		}
		if p.ends.wait() != nil {
			return
		}
		p.idle.Store(false)
		time.Sleep(pause)
		due, err := p.tell()
		if err != nil {
			return
		}
		if due > 0 {
			p.later.Reset(due)
		}
	}
}

// any reports whether there is something to tell.
func (p *programs) any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0 || p.dropped > 0
}

// wake ends watch's waiting.
func (p *programs) wake() {
	if p.idle.CompareAndSwap(true, false) {
		p.ends.wake()
	}
}

// label gives the programs since it was called last, to label a snapshot.
func (p *programs) label() []wire.Program {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.labels.Take()
}

// pidOf gives the process of a program's parent. p.mu is held.
func (p *programs) pidOf(n *initlink.Program) int {
	for _, a := range p.alive {
		if a.id == n.Parent {
			return a.pid
		}
	}
	return n.PPID
}
