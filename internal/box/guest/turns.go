package guest

import "sync"

// turns is the notify.Lock of a box. Its holder for writing, a capture or a promotion, also keeps init from
// starting a command, which would otherwise be captured half started, or see a half-done promotion. A command
// that is being started waits for init's answer to its execve(2), so starting is taken first and never while
// the other is held.
type turns struct {
	starting sync.Mutex // held while a command is started
	sync.RWMutex
}

// Lock waits until no command is being started and no notification is being served.
func (t *turns) Lock() {
	t.starting.Lock()
	t.RWMutex.Lock()
}

// Unlock releases what Lock has taken.
func (t *turns) Unlock() {
	t.RWMutex.Unlock()
	t.starting.Unlock()
}
