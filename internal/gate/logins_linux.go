//go:build linux && (amd64 || arm64)

package gate

import (
	"runtime"
	"sync"
)

// logins counts connections over SSH that the gate ends: at most most at a time, and twice as many in memory. The
// garbage collector frees those that have ended; a hostile client can make one stay.
type logins struct {
	most int

	mu         sync.Mutex
	open, held int // guarded by mu
}

func (l *logins) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || l.held >= 2*l.most {
		return false
	}
	l.open, l.held = l.open+1, l.held+1
	return true
}

func (l *logins) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

func (l *logins) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held--
}

// sweep frees connections that have ended if many are in memory.
func (l *logins) sweep() {
	l.mu.Lock()
	many := l.held > l.most
	l.mu.Unlock()
	if many {
		runtime.GC()
	}
}
