//go:build linux && (amd64 || arm64)

package guest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/notify"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// maxRefused is how many different refusals are told in one interval; of others it is
	// counted how many there were.
	maxRefused = 64
	// refusedAgain is how long refusals that are alike are counted before they are told again.
	refusedAgain = 10 * time.Second
	// maxProgram is how much of the path of a program is told, in bytes.
	maxProgram = 256
)

// Refusals sums up the system calls that are refused, until somebody tells the keeper: of one
// that is new at once, of others now and then, and of all before it is told that a command has
// ended. A nil one has nothing to tell. Its methods may be called from several goroutines.
type Refusals struct {
	tally *Tally        // of all that were refused ever, before anybody is answered
	due   chan struct{} // has something when Take is to be called

	mu    sync.Mutex
	seen  map[Refusal]*refusedAt // guarded by mu; at most maxRefused
	more  int64                  // guarded by mu; had no place in seen since Take
	again *time.Timer            // guarded by mu; nil while nothing waits to be told
}

// Refusal is what is the same of refusals that are told as one.
type Refusal struct {
	Call    string // the system call's name
	Program string // what the caller runs; any bytes
	Errno   unix.Errno
	Command Session // the caller's
}

// refusedAt is how often it was since at, when it was told last.
type refusedAt struct {
	pid   int // of the first
	count int64
	at    time.Time
}

// NewRefusals counts all in a tally.
func NewRefusals(tally *Tally) *Refusals {
	return &Refusals{tally: tally, due: make(chan struct{}, 1), seen: map[Refusal]*refusedAt{}}
}

// countRefusals has refusals told, by a tally that the keeper gave, whose descriptor it closes.
func (d *daemon) countRefusals(fd int) error {
	defer unix.Close(fd)
	t, err := MapTally(fd)
	if err != nil {
		return err
	}
	d.refused = NewRefusals(t)
	return nil
}

// add is notify.Options.Refused.
func (r *Refusals) add(n notify.Refusal) {
	r.Add(Refusal{Call: n.Call, Program: n.Program, Errno: n.Errno, Command: sessionOf(n.TID)}, func() int { return procs.ProcessOf(n.TID) })
}

// Add counts one, whose caller is not answered yet; process gives the caller's process.
func (r *Refusals) Add(one Refusal, process func() int) {
	r.tally.Add()
	one.Program = one.Program[:min(len(one.Program), maxProgram)]
	r.note(one, process)
}

func (r *Refusals) note(one Refusal, process func() int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.seen[one]; at != nil {
		at.count++
		r.waitLocked()
		return
	}
	if len(r.seen) >= maxRefused {
		r.more++
		r.waitLocked()
		return
	}
	r.seen[one] = &refusedAt{pid: process(), count: 1}
	r.wake()
}

// wake has Take called.
func (r *Refusals) wake() {
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// waitLocked has Take called some time from now.
func (r *Refusals) waitLocked() {
	if r.again == nil {
		r.again = time.AfterFunc(refusedAgain, r.wake)
	}
}

// Take gives what was not told yet, now. What was told long ago is forgotten, and makes room.
func (r *Refusals) Take(now time.Time) (out initlink.Refused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.again != nil {
		r.again.Stop()
		r.again = nil
	}
	out.More, r.more = r.more, 0
	for key, at := range r.seen {
		switch {
		case at.count > 0:
			out.Calls = append(out.Calls, initlink.RefusedCall{Call: key.Call, Errno: unix.ErrnoName(key.Errno), Program: key.Program, PID: at.pid, Command: key.Command.Leader, Lives: key.Command.Lives, Count: at.count})
			at.count, at.at = 0, now
		case now.Sub(at.at) >= refusedAgain:
			delete(r.seen, key)
		}
	}
	return out
}

// tell sends what Take gives.
func (r *Refusals) tell(link *initlink.Link) error {
	if r == nil {
		return nil
	}
	out := r.Take(time.Now())
	if len(out.Calls) == 0 && out.More == 0 {
		return nil
	}
	return link.Send(initlink.MsgRefused, out)
}

// Due has something when Take is to be called.
func (r *Refusals) Due() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.due
}

// Session is what a process belongs to that descends from a command: every command leads a
// session, whose number no other process has as long as somebody is in it.
type Session struct {
	Leader int  // 0 where it cannot be told
	Lives  bool // the leader
}

// sessionOf gives the session of thread tid or, where that was made by a descendant, of a
// process above it.
func sessionOf(tid int) Session {
	for range maxUp {
		sid, err := unix.Getsid(tid)
		if err != nil || sid <= 1 {
			return Session{}
		}
		up, lives := procs.Parent(sid)
		if !lives || up <= 1 {
			return Session{Leader: sid, Lives: lives}
		}
		tid = up
	}
	return Session{}
}

// Tally counts in memory that keeper and init share, so that what init did not come to tell
// before it was killed is known to be missing.
type Tally struct{ n *atomic.Uint64 }

// NewTally makes one, and the descriptor by which MapTally shares it, which the caller
// closes. The memory is in use until the process ends.
func NewTally() (t *Tally, fd int, err error) {
	fd, err = unix.MemfdCreate("tally", unix.MFD_CLOEXEC)
	if err == nil {
		if err = unix.Ftruncate(fd, tallySize); err == nil {
			t, err = MapTally(fd)
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	return t, fd, fault.Wrap(err, "share memory with init")
}

// MapTally uses one that another process made. It does not close fd.
func MapTally(fd int) (*Tally, error) {
	b, err := unix.Mmap(fd, 0, tallySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a tally: %w", err)
	}
	return &Tally{n: (*atomic.Uint64)(unsafe.Pointer(&b[0]))}, nil
}

// Add counts one.
func (t *Tally) Add() { t.n.Add(1) }

// Count is how much was counted.
func (t *Tally) Count() uint64 { return t.n.Load() }

const tallySize = 8
