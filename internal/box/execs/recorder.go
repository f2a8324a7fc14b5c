//go:build linux && (amd64 || arm64)

package execs

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

// Bounds of the record. What exceeds them is counted.
const (
	// MaxProgramArgs is how many bytes of a program's arguments are kept.
	MaxProgramArgs = 4 << 10
	// MaxProgramPath is how many bytes of a program's path and of its directory are kept.
	MaxProgramPath = unix.PathMax
	// maxPending bounds the number, and maxPendingBytes the bytes, of the events that the keeper
	// has not read.
	maxPending      = 8192
	maxPendingBytes = 4 << 20
	// maxBatch is about the largest size of a message.
	maxBatch = 256 << 10
	// maxAlive is the largest number of running processes in the record. Programs of further processes are recorded as
	// asked for, without an end.
	maxAlive = limit.ProgramsAlive
	// maxAncestors is how many ancestors of a process are searched for its parent program.
	maxAncestors = 16
)

// Recorder records the programs of a sandbox from the calls that package notify sees, and sends them to the keeper. A
// nil Recorder records nothing.
//
// Each execve(2) that a process asks for (asked.go) is recorded as one of:
//
//	begun  the process executes another file than before, or has made the first call of a new
//	       program; file, arguments and directory are read from /proc
//	asked  the process asked again, has ended, or still executes the same file; file, arguments
//	       and directory are those that the sandbox passed
type Recorder struct {
	link  *initlink.Link
	child func(pid int) bool // reports whether a process is about to become a command
	ends  *ends
	begun atomic.Uint64 // id of the last program
	idle  atomic.Bool   // Watch waits for a wake-up
	later *time.Timer   // wakes Watch up for the next check of an ask

	mu      sync.Mutex
	exec    string                  // guarded by mu; the id of the command that is being started
	alive   map[int]*alive          // guarded by mu; by pid
	waiting map[int]*alive          // guarded by mu; the processes in alive that have asks
	newest  *alive                  // guarded by mu; the process of the last ask; nil if that ask is recorded
	pending []initlink.ProgramEvent // guarded by mu
	bytes   int                     // guarded by mu; size of pending
	dropped uint64                  // guarded by mu; events that were dropped since the last Tell
	labels  Labels                  // guarded by mu

	telling sync.Mutex // held while events are sent, so that they keep their order; locked before mu
}

// alive is a process that executed a program or asked for one.
type alive struct {
	id, parent uint64 // ids of the program that it executes (0 if unknown) and of its parent program
	exec       string
	pid, ppid  int
	fd         int // its pidfd
	file       fileID
	asks       []ask // oldest first
}

// New returns a Recorder that sends to link. child reports whether a process is about to become a
// command.
func New(link *initlink.Link, child func(pid int) bool) (*Recorder, error) {
	e, err := newEnds()
	p := &Recorder{link: link, child: child, ends: e, alive: map[int]*alive{}, waiting: map[int]*alive{}}
	p.later = time.AfterFunc(time.Hour, p.wake)
	p.later.Stop()
	return p, err
}

// Starting sets the id of the command that is started next.
func (p *Recorder) Starting(exec string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.exec = exec
	p.mu.Unlock()
}

// process returns the record of the process of a thread, which waits for init. It returns nil if the thread has
// exited. If the recorder is full, it returns a record with fd -1 and does not register it. p.mu is held.
func (p *Recorder) process(tid int) *alive {
	if a := p.living(tid); a != nil {
		return a
	}
	pid, fd := tid, procs.OpenPidfd(tid)
	if fd < 0 { // not the first thread of its process
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
		if above.id == 0 { // its own ask has no result yet
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

// living returns the record of the running process with that pid, or nil. p.mu is held.
func (p *Recorder) living(pid int) *alive {
	a := p.alive[pid]
	if a == nil {
		return nil
	}
	// Another process can have the pid only if this one has ended.
	if unix.PidfdSendSignal(a.fd, 0, nil, 0) == unix.ESRCH {
		p.end(a)
		return nil
	}
	return a
}

// above returns the record of a process or of its nearest ancestor that has one. p.mu is held.
func (p *Recorder) above(pid int) *alive {
	for range maxAncestors {
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

// end records that a process has ended, and removes it. If the process had no program before its last ask, that ask may
// have succeeded: the end of the process is recorded as the end of the program that it asked for. p.mu is held.
func (p *Recorder) end(a *alive) {
	if status, ok := procs.ExitStatus(a.fd, a.pid); ok {
		p.endWith(a, &status)
	} else {
		p.endWith(a, nil)
	}
}

// Reaped records the exit of a child of init. Init has already waited for it.
func (p *Recorder) Reaped(pid int, status uint32) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.alive[pid]; a != nil {
		p.endWith(a, &status)
	}
}

// endWith is end with a known wait status, or nil. p.mu is held.
func (p *Recorder) endWith(a *alive, status *uint32) {
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

// add queues an event. p.mu is held.
func (p *Recorder) add(e initlink.ProgramEvent) {
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

// Tell sends the keeper all starts and ends so far. due is the time until the next check of an ask, or 0 if there is
// none.
func (p *Recorder) Tell() (due time.Duration, err error) {
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

// pause is how long events are collected before they are sent, and so the precision of the time of an end.
const pause = 10 * time.Millisecond

// Watch sends events as programs start and end, until this process ends or the link fails. It wakes up at most once per
// pause, and not at all while no program starts or ends.
func (p *Recorder) Watch() {
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
		due, err := p.Tell()
		if err != nil {
			return
		}
		if due > 0 {
			p.later.Reset(due)
		}
	}
}

// any reports whether there are events to send.
func (p *Recorder) any() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0 || p.dropped > 0
}

// wake wakes up Watch.
func (p *Recorder) wake() {
	if p.idle.CompareAndSwap(true, false) {
		p.ends.wake()
	}
}

// Label returns the programs since the previous call, to label a snapshot.
func (p *Recorder) Label() []wire.Program {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.labels.Take()
}

// pidOf returns the pid of a program's parent. p.mu is held.
func (p *Recorder) pidOf(n *initlink.Program) int {
	for _, a := range p.alive {
		if a.id == n.Parent {
			return a.pid
		}
	}
	return n.PPID
}
