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

// Config is what a Runner is made of. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Memory    Memory
	Register  *Register // has the commands that are open
	Records   Records
	Book      *audit.Book
	Ledger    *ledger.Ledger // what earlier daemons recorded is read from
	Cleaners  *audit.Cleaners
	Budgets   *audit.Budgets // of snapshots that are taken by themselves
	Journals  *audit.Journals
	Policies  *policies.Policies
	Feed      *events.Bus
	Rand      io.Reader
	// Go runs a function in the background, unless the engine is being closed. Its context ends with the
	// engine, which waits for it.
	Go func(func(context.Context))
	// Caller names the caller of an operation, for the ledger; "" if it has no name.
	Caller func(context.Context) string
	Now    func() time.Time
	Log    *slog.Logger
}

// Runner runs the commands of all sandboxes of a home. Make one with New; its methods are safe for
// concurrent use.
type Runner struct {
	c Config // never changed

	mu    sync.Mutex // a leaf
	known map[timeline.SandboxID]*place
}

// New makes a Runner.
func New(c Config) *Runner { return &Runner{c: c, known: map[timeline.SandboxID]*place{}} }

// place is what a Runner remembers of a sandbox.
type place struct {
	id      timeline.SandboxID
	sandbox Sandbox
	guarded sandbox.Guarded[owned]
}

// owned is what the lock of a sandbox guards.
type owned struct {
	begun    int                 // commands started by this process
	run      *command            // the supervised command; nil: none
	kept     map[string]*command // commands that no client has to be attached to
	past     []*command          // those of them that have ended, oldest first
	followed Box                 // whose changes are captured by themselves
}

// held is a sandbox whose lock the caller holds, with what the lock guards.
type held struct {
	Held
	*owned
	at *place
}

// with returns a sandbox that the engine holds, with what is known of its commands.
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

// of returns what is known of a sandbox whose lock is held; nil: nothing is.
func (r *Runner) of(h *sandbox.Held) *owned {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.known[h.SandboxID()]; p != nil {
		return p.guarded.Of(h)
	}
	return nil
}

// Forget forgets a sandbox that was removed.
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

// live finds a sandbox and its box, nil if it has none.
func (r *Runner) live(ctx context.Context, name, what string) (Box, meta.Sandbox, error) {
	s, rec, err := r.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	defer s.unlock()
	return s.Box(), rec, nil
}

// newID chooses what a command is called by its keeper.
func (r *Runner) newID() (string, error) {
	b := make([]byte, 5)
	_, err := io.ReadFull(r.c.Rand, b)
	return "x" + hex.EncodeToString(b), fault.Wrap(err, "choose an id")
}

// isID reports whether a text is what newID makes.
func isID(s string) bool {
	digits, ok := strings.CutPrefix(s, "x")
	return ok && len(digits) == 10 && strings.Trim(digits, "0123456789abcdef") == ""
}
