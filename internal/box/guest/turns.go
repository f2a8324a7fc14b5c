package guest

import "sync"

// turns is the notify.Lock of a box. Whoever holds it for writing, for a capture or a
// promotion, also keeps init from starting a command: it would be seen half started,
// or see what is half promoted. A command that is being started waits for init's
// answer to its execve(2), so starting is taken first and never while the other is
// held.
type turns struct {
	starting sync.Mutex // held while a command is started
	sync.RWMutex
}

// Lock waits until no command is being started and no notification is under way.
func (t *turns) Lock() {
	t.starting.Lock()
	t.RWMutex.Lock()
}

// Unlock undoes Lock.
func (t *turns) Unlock() {
	t.RWMutex.Unlock()
	t.starting.Unlock()
}
