//go:build linux && (amd64 || arm64)

package refusals

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	// maxRefused is how many different refusals are reported in one interval: so many calls, and so many files. Further
	// ones are counted together. A flood of either hides none of the other.
	maxRefused = 64
	// refusedAgain is how long equal refusals are counted before they are reported again.
	refusedAgain = 10 * time.Second
	// maxProgram and maxPath are the largest lengths of the path of a program and of a file, in bytes.
	maxProgram = 256
	maxPath    = 1024
)

// Summary summarizes refused system calls for the keeper. A new refusal is due at once, and repeated ones after an
// interval. Before the keeper learns that a command has exited, it gets all refusals so far (Take). A nil Summary is
// empty. Methods may be called from several goroutines.
type Summary struct {
	tally *Tally        // counts each refusal before the caller gets its answer
	due   chan struct{} // see Due

	mu    sync.Mutex
	seen  map[Refusal]*refusedAt // guarded by mu; at most maxRefused calls, and as many files
	files int                    // guarded by mu; number of files in seen
	more  int64                  // guarded by mu; calls since Take that did not fit into seen
	left  int64                  // guarded by mu; the same for files
	again *time.Timer            // guarded by mu; nil if nothing waits for the interval
}

// Refusal is a refused call. Equal ones are reported together.
type Refusal struct {
	Call    string // the system call's name
	File    File   // the file that was refused; zero if the call itself was
	Program string // the program that the caller executes; any bytes
	Errno   unix.Errno
	Command Session // the caller's session
}

// File is a file that was refused, and what for.
type File struct {
	Path string // absolute; any bytes
	Op   string // what the caller wanted, one of the constants of wire
	Rule string // what refused it, one of the constants of wire
}

// refusedAt counts equal refusals since they were last reported.
type refusedAt struct {
	pid         int // pid of the first caller
	count       int64
	first, last time.Time // time of the first and of the last of them
	at          time.Time // time of the last report
}

// NewSummary returns an empty Summary that also counts in tally.
func NewSummary(tally *Tally) *Summary {
	return &Summary{tally: tally, due: make(chan struct{}, 1), seen: map[Refusal]*refusedAt{}}
}

// Add counts a refusal whose caller has not received its answer yet. process returns the pid of the caller, and is
// called if the refusal is new.
func (r *Summary) Add(one Refusal, process func() int) {
	r.tally.Add()
	one.Program = limit.Cut(one.Program, maxProgram)
	one.File.Path = limit.Cut(one.File.Path, maxPath)
	r.note(one, time.Now(), process)
}

func (r *Summary) note(one Refusal, now time.Time, process func() int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := r.seen[one]; at != nil {
		if at.count == 0 {
			at.first = now
		}
		at.last = now
		at.count++
		r.waitLocked()
		return
	}
	known, over, file := len(r.seen)-r.files, &r.more, one.File != (File{})
	if file {
		known, over = r.files, &r.left
	}
	if known >= maxRefused {
		*over++
		r.waitLocked()
		return
	}
	if file {
		r.files++
	}
	r.seen[one] = &refusedAt{pid: process(), count: 1, first: now, last: now}
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
	out.Files, r.left = r.left, 0
	for key, at := range r.seen {
		switch {
		case at.count > 0:
			c := initlink.RefusedCall{Call: key.Call, Errno: unix.ErrnoName(key.Errno), Program: key.Program, PID: at.pid,
				Command: key.Command.Leader, Lives: key.Command.Lives, Count: at.count}
			if f := key.File; f != (File{}) {
				c.File = &initlink.RefusedFile{Path: f.Path, Op: f.Op, Rule: f.Rule, First: at.first, Last: at.last}
			}
			out.Calls = append(out.Calls, c)
			at.count, at.at = 0, now
		case now.Sub(at.at) >= refusedAgain:
			delete(r.seen, key)
			if key.File != (File{}) {
				r.files--
			}
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
	if out.Empty() {
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
