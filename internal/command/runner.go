//go:build linux

package command

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Config configures a Runner. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Memory    Memory
	Register  *Register // holds the open commands
	Records   Records
	Book      *audit.Book
	Ledger    *ledger.Ledger // read for the records of earlier daemons
	Cleaners  *audit.Cleaners
	Budgets   *audit.Budgets // of automatic snapshots
	Journals  *audit.Journals
	Policies  *policies.Policies
	UID       uint32 // id, on the host, of the user that the daemon runs as
	Feed      *events.Bus
	Rand      io.Reader
	// Go runs a function in the background, unless the engine is being closed. Its context is canceled when the engine
	// is closed, which waits for the function to return.
	Go func(func(context.Context))
	// Caller names the caller of an operation, for the audit log; "" if it has no name.
	Caller func(context.Context) string
	Now    func() time.Time
	Log    *slog.Logger
}

// Runner runs the commands of all sandboxes of a home. New makes one; its methods are safe for
// concurrent use.
type Runner struct {
	c Config // never changed

	mu    sync.Mutex // held last: see docs/design/locks.md
	known map[timeline.SandboxID]*place
}

// New makes a Runner.
func New(c Config) *Runner { return &Runner{c: c, known: map[timeline.SandboxID]*place{}} }

// place is what a Runner caches about a sandbox.
type place struct {
	id      timeline.SandboxID
	sandbox Sandbox
	guarded sandbox.Guarded[owned]
}

// owned is the state that the lock of a sandbox guards.
type owned struct {
	begun    int                 // commands started by this process
	run      *command            // the supervised command; nil: none
	kept     map[string]*command // detached commands
	past     []*command          // the exited ones among them, oldest first
	follower *follower           // captures the changes of the box automatically; nil: none does
}

// held is a sandbox whose lock the caller holds, with the state that the lock guards.
type held struct {
	Held
	*owned
	at *place
}

// with returns a sandbox that the engine holds, with the state of its commands.
func (r *Runner) with(h Held) held {
	id := h.Proof().SandboxID()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known[id]
	if p == nil {
		p = &place{id: id, sandbox: h.Sandbox()}
		r.known[id] = p
	}
	return held{h, p.guarded.Of(h.Proof()), p}
}

// of returns the state of a sandbox whose lock is held; nil if it has none.
func (r *Runner) of(h *sandbox.Held) *owned {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.known[h.SandboxID()]; p != nil {
		return p.guarded.Of(h)
	}
	return nil
}

// Forget discards the state of a sandbox that was removed.
func (r *Runner) Forget(id timeline.SandboxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
}

// acquire finds a sandbox by name or id and takes its lock.
func (r *Runner) acquire(ctx context.Context, name, what string) (*held, meta.Sandbox, error) {
	h, rec, err := r.c.Sandboxes.Acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	s := r.with(h)
	return &s, rec, nil
}

// lock takes the lock of a sandbox again.
func (r *Runner) lock(ctx context.Context, p *place, what string) (*held, error) {
	h, err := p.sandbox.Acquire(ctx, what)
	if err != nil {
		return nil, err
	}
	return &held{h, p.guarded.Of(h.Proof()), p}, nil
}

// unlock releases the lock.
func (s *held) unlock() { s.Unlock() }

// live finds a sandbox and its box, which is nil if it has none.
func (r *Runner) live(ctx context.Context, name, what string) (Box, meta.Sandbox, error) {
	s, rec, err := r.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	defer s.unlock()
	return s.Box(), rec, nil
}

// newID returns a new id of a command.
func (r *Runner) newID() (string, error) {
	b := make([]byte, 5)
	_, err := io.ReadFull(r.c.Rand, b)
	return "x" + hex.EncodeToString(b), fault.Wrap(err, "choose an id")
}

// isID reports whether s has the form that newID returns.
func isID(s string) bool {
	digits, ok := strings.CutPrefix(s, "x")
	return ok && len(digits) == 10 && strings.Trim(digits, "0123456789abcdef") == ""
}
