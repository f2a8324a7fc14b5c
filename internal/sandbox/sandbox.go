// Package sandbox decides whose turn it is to work on a sandbox. Sandbox is the lock of one;
// Held proves that the caller has it, and is the way to what it guards. A caller that ends a
// sandbox's processes does not wait for others: it cancels the start and, after a while, the
// capture that hold the lock.
package sandbox

import (
	"context"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandbox is the lock of one sandbox, and who holds it. Make one with New; its methods are safe
// for concurrent use.
type Sandbox struct {
	// ID names the sandbox. It does not change.
	ID timeline.SandboxID

	lock chan struct{} // one token: whoever has taken it holds the lock

	mu      sync.Mutex // a leaf: no other lock is taken while it is held
	owner   string     // what holds the lock, for messages; guarded by mu
	start   work       // the start in progress; guarded by mu
	capture work       // the capture in progress; guarded by mu
}

// New returns the lock of a sandbox, which nobody holds.
func New(id timeline.SandboxID) *Sandbox {
	b := &Sandbox{ID: id, lock: make(chan struct{}, 1)}
	b.lock <- struct{}{}
	return b
}

// Lock waits for the lock. what says what the caller does with it, for the message that other
// callers get. If ctx ends first, the error is a Conflict that names the sandbox as name, and
// what holds the lock.
func (b *Sandbox) Lock(ctx context.Context, name, what string) (*Held, error) {
	select {
	case <-b.lock:
	case <-ctx.Done():
		return nil, b.busy(ctx, name)
	}
	return b.held(what), nil
}

// TryLock takes the lock if nobody holds it; nil otherwise.
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

// Held is the lock of a sandbox in the hands of its caller, from Lock until Unlock.
type Held struct{ b *Sandbox }

// SandboxID names the sandbox whose lock it is.
func (h *Held) SandboxID() timeline.SandboxID { return h.b.ID }

// Unlock releases the lock. The Held is not used afterwards.
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

// Of returns the value, for as long as the caller holds the lock h, which is that of the sandbox
// that the value belongs to.
func (g *Guarded[T]) Of(*Held) *T { return &g.v }
