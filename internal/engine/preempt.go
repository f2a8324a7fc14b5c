//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// acquireToEnd is acquire for callers that end all processes of a sandbox, which the sandbox
// must not be able to delay: it cancels a start that holds the lock at once, and captures
// after patience, and kills a keeper that does not answer. why completes "the sandbox ...";
// acquire is e.acquire or e.acquireAny.
func (e *Engine) acquireToEnd(ctx context.Context, acquire acquirer, name, what, why string, patience time.Duration) (*sandbox, meta.Sandbox, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return nil, rec, err
	}
	defer e.cancelStarts(e.sandbox(rec.ID), fault.New(fault.Cancelled, "sandbox %s %s while it started", rec.Name, why))()
	cause := fault.New(fault.Cancelled, "sandbox %s %s while it was captured", rec.Name, why)
	defer e.preempt(e.sandbox(rec.ID), patience, cause)()
	s, now, err := acquire(ctx, name, what)
	if !errors.Is(err, errUnanswered) || ctx.Err() != nil {
		return s, now, err
	}
	e.Logger.Warn("the keeper of a sandbox does not answer, and is killed", "sandbox", rec.Name, "err", err)
	if kerr := e.Boxes.Kill(ctx, e.runDir(rec.ID)); kerr != nil {
		return nil, rec, errors.Join(err, kerr)
	}
	return acquire(ctx, name, what)
}

// acquirer finds a sandbox and takes its lock, which the caller unlocks.
type acquirer func(ctx context.Context, name, what string) (*sandbox, meta.Sandbox, error)

// preempt cancels captures of a sandbox after a while: the one in progress and any that
// begins later, until over is called.
func (e *Engine) preempt(s *sandbox, after time.Duration, cause error) (over func()) {
	ended := false // guarded by mu
	late := time.AfterFunc(after, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if ended {
			return
		}
		s.preempted = append(s.preempted, cause)
		if s.holder != nil {
			s.holder(cause)
		}
	})
	return func() {
		late.Stop()
		e.mu.Lock()
		defer e.mu.Unlock()
		ended = true
		s.preempted = slices.DeleteFunc(s.preempted, func(err error) bool { return err == cause }) //nolint:errorlint // removes this value, not one that wraps it
	}
}

// preemptible returns the context of a capture, which preempt cancels. The caller holds the
// lock, and calls done.
func (e *Engine) preemptible(ctx context.Context, s *sandbox) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	s.holder = cancel
	if len(s.preempted) > 0 {
		cancel(s.preempted[0])
	}
	e.mu.Unlock()
	return ctx, func() {
		e.mu.Lock()
		s.holder = nil
		e.mu.Unlock()
		cancel(nil)
	}
}

// thaw thaws a box, without waiting once hold has ended.
func thaw(hold context.Context, f Frozen) error {
	stop := context.AfterFunc(hold, f.Drop)
	defer stop()
	if err := f.Thaw(); hold.Err() == nil {
		return err
	}
	return nil
}
