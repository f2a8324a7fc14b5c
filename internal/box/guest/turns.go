package guest

import "sync"

// turns is the notify.Lock of a box. A capture or a promotion holds it for writing. That also stops init from starting
// a command, which would otherwise be captured half started, or see an incomplete promotion. A command that is being
// started waits for init's answer to its execve(2), so starting is locked first and never while the RWMutex is held.
type turns struct {
	starting sync.Mutex // held while a command is started
	sync.RWMutex
}

// Lock waits until no command is being started and no notification is being served.
func (t *turns) Lock() {
	t.starting.Lock()
	t.RWMutex.Lock()
}

// Unlock releases both locks.
func (t *turns) Unlock() {
	t.RWMutex.Unlock()
	t.starting.Unlock()
}
