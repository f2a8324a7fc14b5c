//go:build linux && (amd64 || arm64)

package refusals

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

const (
	// maxRefused is how many different refusals are reported in one interval. Further ones are counted together.
	maxRefused = 64
	// refusedAgain is how long equal refusals are counted before they are reported again.
	refusedAgain = 10 * time.Second
	// maxProgram is the largest length of the path of a program, in bytes.
	maxProgram = 256
)

// Summary summarizes refused system calls for the keeper. A new refusal is due at once, and repeated ones after an
// interval. Before the keeper learns that a command has exited, it gets all refusals so far (Take). A nil Summary is
// empty. Methods may be called from several goroutines.
type Summary struct {
	tally *Tally        // counts each refusal before the caller gets its answer
	due   chan struct{} // see Due

	mu    sync.Mutex
	seen  map[Refusal]*refusedAt // guarded by mu; at most maxRefused
	more  int64                  // guarded by mu; refusals since Take that did not fit into seen
	again *time.Timer            // guarded by mu; nil if nothing waits for the interval
}

// Refusal is a refused call. Equal ones are reported together.
type Refusal struct {
	Call    string // the system call's name
	Program string // the program that the caller executes; any bytes
	Errno   unix.Errno
	Command Session // the caller's session
}

// refusedAt counts equal refusals since they were last reported.
type refusedAt struct {
	pid   int // pid of the first caller
	count int64
	at    time.Time // time of the last report
}

// NewSummary returns an empty Summary that also counts in tally.
func NewSummary(tally *Tally) *Summary {
	return &Summary{tally: tally, due: make(chan struct{}, 1), seen: map[Refusal]*refusedAt{}}
}

// Add counts a refusal whose caller has not received its answer yet. process returns the pid of the caller, and is
// called if the refusal is new.
func (r *Summary) Add(one Refusal, process func() int) {
	r.tally.Add()
	one.Program = one.Program[:min(len(one.Program), maxProgram)]
	r.note(one, process)
}

func (r *Summary) note(one Refusal, process func() int) {
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

// wake makes Due ready.
func (r *Summary) wake() {
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// waitLocked makes Due ready after the interval.
func (r *Summary) waitLocked() {
	if r.again == nil {
		r.again = time.AfterFunc(refusedAgain, r.wake)
	}
}

// Take returns the refusals that were not reported yet. It forgets those that were reported an interval ago, to make
// room for new ones.
func (r *Summary) Take(now time.Time) (out initlink.Refused) {
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
			out.Calls = append(out.Calls,
				initlink.RefusedCall{Call: key.Call, Errno: unix.ErrnoName(key.Errno), Program: key.Program, PID: at.pid,
					Command: key.Command.Leader, Lives: key.Command.Lives, Count: at.count})
			at.count, at.at = 0, now
		case now.Sub(at.at) >= refusedAgain:
			delete(r.seen, key)
		}
	}
	return out
}

// Tell sends the result of Take to the keeper unless it is empty.
func (r *Summary) Tell(link *initlink.Link) error {
	if r == nil {
		return nil
	}
	out := r.Take(time.Now())
	if len(out.Calls) == 0 && out.More == 0 {
		return nil
	}
	return link.Send(initlink.MsgRefused, out)
}

// Due returns a channel that is ready when Take must be called. It is nil for a nil Summary.
func (r *Summary) Due() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.due
}
