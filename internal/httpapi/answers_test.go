package httpapi_test

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// answersInMemory stores answers in memory.
type answersInMemory struct {
	mu  sync.Mutex
	all map[string][]byte // guarded by mu
	err error             // returned by KeepAnswer; guarded by mu
}

func (a *answersInMemory) Answer(_ context.Context, key string) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[key], nil
}

func (a *answersInMemory) KeepAnswer(_ context.Context, key string, answer []byte, keep time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	if keep == 0 {
		delete(a.all, key)
		return nil
	}
	if a.all == nil {
		a.all = map[string][]byte{}
	}
	a.all[key] = answer
	return nil
}

func (a *answersInMemory) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// slow is an engine whose Fork waits for end.
type slow struct {
	fake
	begun, end chan bool
}

func (s *slow) Fork(context.Context, string, wire.ForkRequest) (wire.ForkResult, error) {
	s.begun <- true
	<-s.end
	return wire.ForkResult{Sandboxes: []wire.Sandbox{{Name: "f"}}}, s.err
}
