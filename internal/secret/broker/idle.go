package broker

import (
	"sync"
	"time"
)

// idle knows whether there is something to do: connections, registrations, and what runs in the background.
type idle struct {
	after time.Duration
	over  chan struct{} // closed when there was nothing to do for the time after

	mu    sync.Mutex
	busy  int
	timer *time.Timer
	ended bool
	all   sync.WaitGroup
}

// newIdle returns the state of a process that has nothing to do yet.
func newIdle(after time.Duration) *idle {
	i := &idle{after: after, over: make(chan struct{})}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.timer = time.AfterFunc(after, i.end)
	return i
}

// enter notes that there is something to do, until the caller calls done, once.
func (i *idle) enter() (done func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.busy++
	i.all.Add(1)
	i.timer.Stop()
	return i.leave
}

func (i *idle) leave() {
	defer i.all.Done()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.busy--; i.busy == 0 {
		i.timer.Reset(i.after)
	}
}

// end closes over, unless something began when the timer expired.
func (i *idle) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.busy == 0 && !i.ended {
		i.ended = true
		close(i.over)
	}
}

// wait waits until nothing is left to do.
func (i *idle) wait() { i.all.Wait() }
