// Package sandbox implements the lock of a sandbox. Sandbox is the lock of one; Held proves that the caller holds it,
// and gives access to the state that it guards. A caller that ends the processes of a sandbox does not wait for
// others: it cancels the start or, after a while, the capture that holds the lock.
package sandbox

import (
	"context"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandbox is the lock of one sandbox, and knows its holder. New makes one; its methods are safe for concurrent use.
type Sandbox struct {
	// ID is the id of the sandbox. It does not change.
	ID timeline.SandboxID

	lock chan struct{} // one token: its receiver holds the lock

	mu      sync.Mutex // held last: see docs/design/locks.md
	owner   string     // the operation that holds the lock, for messages; guarded by mu
	start   work       // the start in progress; guarded by mu
	capture work       // the capture in progress; guarded by mu
}

// New returns the lock of a sandbox, which is free.
func New(id timeline.SandboxID) *Sandbox {
	b := &Sandbox{ID: id, lock: make(chan struct{}, 1)}
	b.lock <- struct{}{}
	return b
}

// Lock waits for the lock. what names the caller's operation in the error that concurrent callers get. If ctx is
// canceled first, the error is a Conflict that names the sandbox as name, and the operation that holds the lock.
func (b *Sandbox) Lock(ctx context.Context, name, what string) (*Held, error) {
	select {
	case <-b.lock:
	case <-ctx.Done():
		return nil, b.busy(ctx, name)
	}
	return b.held(what), nil
}

// TryLock takes the lock if it is free; otherwise it returns nil.
func (b *Sandbox) TryLock(what string) *Held {
	select {
	case <-b.lock:
		return b.held(what)
	default:
		return nil
	}
}

func (b *Sandbox) held(what string) *Held {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owner = what
	return &Held{b: b}
}

func (b *Sandbox) busy(ctx context.Context, name string) error {
	b.mu.Lock()
	owner := b.owner
	b.mu.Unlock()
	return fault.New(fault.Conflict, "sandbox %s is busy: %s", name, owner).
		WithHint("wait until it has finished, then try again").Because(context.Cause(ctx))
}

// Held proves that its owner holds the lock of a sandbox, from Lock until Unlock.
type Held struct{ b *Sandbox }

// SandboxID returns the id of the sandbox.
func (h *Held) SandboxID() timeline.SandboxID { return h.b.ID }

// Unlock releases the lock. The Held must not be used afterwards.
func (h *Held) Unlock() {
	h.b.mu.Lock()
	h.b.owner = ""
	h.b.mu.Unlock()
	h.b.lock <- struct{}{}
}

// Guarded is a value that a sandbox's lock guards. The zero Guarded holds a zero T.
type Guarded[T any] struct{ v T }

// Guard returns a Guarded that holds v.
func Guard[T any](v T) Guarded[T] { return Guarded[T]{v: v} }

// Of returns the value. The caller holds h, the lock of the sandbox that the value belongs to, and uses the
// value only until Unlock.
func (g *Guarded[T]) Of(*Held) *T { return &g.v }
