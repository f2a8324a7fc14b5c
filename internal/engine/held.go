//go:build linux

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// entry caches what the engine knows about a sandbox while the engine runs. All of it can be restored from the disk.
type entry struct {
	*sandbox.Sandbox
	guarded sandbox.Guarded[owned]

	seen seenBox // guarded by Engine.mu
}

// seenBox is what was known about a box when the lock was last released.
type seenBox struct {
	box   Box
	doubt bool
}

// owned is the state that the lock of a sandbox guards.
type owned struct {
	box   Box
	doubt error               // why it is unknown whether there is a box; nil if it is known
	index *layer.Index        // of the live parts, as of snapshot of; nil: unknown; see indexes.present
	of    timeline.SnapshotID // the snapshot that index belongs to
	read  bool                // whether index was looked for on the disk

	mapped    bool      // whether a process had a file mapped shared and writable at the last freeze
	captured  time.Time // when the last capture started
	changed   time.Time // when changes since then were first seen; zero: none were seen
	name      string    // for events
	announced Box       // the box whose start was published, and whose end was not

	programs *audit.BoxPrograms    // of box, or of the previous one; nil: none
	ending   *audit.EndingPrograms // those that the holder of the lock writes; nil: none
}

// held is a sandbox whose lock the caller holds, and the only access to its state.
type held struct {
	*entry
	*owned
	*sandbox.Held
}

func (e *Engine) known() []*entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*entry, 0, len(e.boxes))
	for _, s := range e.boxes {
		all = append(all, s)
	}
	return all
}

// entry returns the entry of a sandbox.
func (e *Engine) entry(id timeline.SandboxID) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.boxes[id]
	if s == nil {
		s = &entry{Sandbox: sandbox.New(id)}
		e.boxes[id] = s
	}
	return s
}

// acquire finds a sandbox by name or id and takes its lock, which the caller unlocks. what names the operation in the
// error that concurrent callers get.
func (e *Engine) acquire(ctx context.Context, name, what string) (*held, meta.Sandbox, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err == nil {
		err = lost(&rec)
	}
	if err == nil {
		err = e.whole(rec.ID, rec.Name)
	}
	if err != nil {
		return nil, rec, err
	}
	return e.acquireAny(ctx, name, what)
}

// lost refuses a sandbox that a power loss has destroyed completely.
func lost(rec *meta.Sandbox) error {
	if !rec.Lost {
		return nil
	}
	return fault.New(fault.Corrupt, "sandbox %s has no snapshot: the power failed before the first one was stored",
		rec.Name).
		WithHint("remove it and create it again: coppice rm %s; its recovered files are in COPPICE_HOME under lost/",
			rec.Name)
}

// acquireAny is acquire for a sandbox that is about to be removed, damaged or not.
func (e *Engine) acquireAny(ctx context.Context, name, what string) (*held, meta.Sandbox, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return nil, rec, err
	}
	h, err := e.lockPatiently(ctx, &rec, what)
	if err != nil {
		return nil, rec, err
	}
	// The sandbox may have changed or been removed before the lock was taken.
	rec, err = e.DB.Sandbox(ctx, string(rec.ID))
	if err != nil {
		h.unlock(e)
		return nil, rec, err
	}
	h.name = rec.Name
	e.Lifetimes.Use(h.ID)()
	if err := e.settleDoubt(ctx, h, &rec); err != nil {
		h.unlock(e)
		return nil, rec, err
	}
	return h, rec, nil
}

// lockPatiently takes the lock of a sandbox. It waits at most Patience, and no longer than the client waits.
func (e *Engine) lockPatiently(ctx context.Context, rec *meta.Sandbox, what string) (*held, error) {
	ctx, done := sandbox.WhileAwaited(ctx)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, e.Patience)
	defer cancel()
	s := e.entry(rec.ID)
	h, err := s.Lock(ctx, rec.Name, what)
	if err != nil {
		return nil, err
	}
	return s.held(h), nil
}

// lock takes the lock of a sandbox, and waits as long as ctx allows.
func (e *Engine) lock(ctx context.Context, s *entry, what string) (*held, error) {
	h, err := s.Lock(ctx, string(s.ID), what)
	if err != nil {
		return nil, err
	}
	return s.held(h), nil
}

// tryLock takes the lock of a sandbox if it is free; otherwise it returns nil.
func (e *Engine) tryLock(s *entry, what string) *held {
	h := s.TryLock(what)
	if h == nil {
		return nil
	}
	return s.held(h)
}

func (s *entry) held(h *sandbox.Held) *held { return &held{entry: s, owned: s.guarded.Of(h), Held: h} }

// unlock releases the lock, and publishes the box for readers that do not take the lock.
func (h *held) unlock(e *Engine) {
	e.mu.Lock()
	h.seen = seenBox{h.box, h.doubt != nil}
	e.mu.Unlock()
	h.Unlock()
}

// acquirer finds a sandbox and takes its lock, which the caller unlocks.
type acquirer func(ctx context.Context, name, what string) (*held, meta.Sandbox, error)

// acquireToEnd is acquire for callers that end all processes of a sandbox. The sandbox must not be able to delay
// them, so it cancels a start that holds the lock at once, cancels captures after patience, and kills a keeper that
// does not answer. why completes "the sandbox ..."; acquire is e.acquire or e.acquireAny.
func (e *Engine) acquireToEnd(
	ctx context.Context, acquire acquirer, name, what, why string, patience time.Duration,
) (*held, meta.Sandbox, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return nil, rec, err
	}
	s := e.entry(rec.ID)
	defer s.CancelStarts(fault.New(fault.Cancelled, "sandbox %s %s while it started", rec.Name, why))()
	cause := fault.New(fault.Cancelled, "sandbox %s %s while it was captured", rec.Name, why)
	defer s.Preempt(patience, cause)()
	h, now, err := acquire(ctx, name, what)
	if !errors.Is(err, errUnanswered) || ctx.Err() != nil {
		return h, now, err
	}
	e.Logger.Warn("killing the monitor of a sandbox: it does not answer", "sandbox", rec.Name, "err", err)
	if kerr := e.Boxes.Kill(ctx, e.runDir(rec.ID)); kerr != nil {
		return nil, rec, errors.Join(err, kerr)
	}
	return acquire(ctx, name, what)
}

// liveNow finds a sandbox and its box, which is nil if it has none.
func liveNow(ctx context.Context, e *Engine, name, what string) (Box, meta.Sandbox, error) {
	s, rec, err := e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	defer s.unlock(e)
	return e.liveBox(s), rec, nil
}
