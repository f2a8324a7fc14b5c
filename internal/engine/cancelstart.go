//go:build linux

package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// waiterKey is the context key of the context of the client that waits for a command to begin.
type waiterKey struct{}

// withWaiter returns a context in which a start is cancelled when the client at the other end
// of stream goes away, if stream can detect that. Nothing else is cancelled: a command
// outlives its client. The caller calls stop before it reads from stream; it may be called
// twice.
func withWaiter(ctx context.Context, stream any) (_ context.Context, stop func()) {
	s, ok := stream.(interface {
		WatchLoss(lost func()) (stop func())
	})
	if !ok {
		return ctx, func() {}
	}
	waiter, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := s.WatchLoss(func() { cancel(fault.New(fault.Cancelled, "the client went away before the command began")) })
	return context.WithValue(ctx, waiterKey{}, waiter), sync.OnceFunc(unwatch)
}

// whileAwaited returns a context that ends with ctx, or when no client waits any longer for
// the command that is about to begin. The caller calls done.
func whileAwaited(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	waiter, ok := ctx.Value(waiterKey{}).(context.Context)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	unhook := context.AfterFunc(waiter, func() { cancel(context.Cause(waiter)) })
	return ctx, func() { unhook(); cancel(nil) }
}

// cancellable returns the context of a start, which stop and rm cancel: a start holds the
// sandbox's lock, which they need. If one of them already waits, the context has ended. The
// caller holds the lock, and calls done.
func (e *Engine) cancellable(ctx context.Context, s *sandbox) (_ context.Context, done func()) {
	ctx, unawaited := whileAwaited(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	e.mu.Lock()
	s.cancelStart = cancel
	if len(s.unstarted) > 0 {
		cancel(s.unstarted[0])
	}
	e.mu.Unlock()
	return ctx, func() {
		e.mu.Lock()
		s.cancelStart = nil
		e.mu.Unlock()
		cancel(nil)
		unawaited()
	}
}

// cancelStarts cancels the start of a sandbox that is in progress, and each one until over is
// called. It does not wait for the sandbox's lock.
func (e *Engine) cancelStarts(s *sandbox, cause error) (over func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.unstarted = append(s.unstarted, cause)
	if s.cancelStart != nil {
		s.cancelStart(cause)
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		s.unstarted = slices.DeleteFunc(s.unstarted, func(err error) bool { return err == cause }) //nolint:errorlint // removes this value, not one that wraps it
	}
}

// procsInTime counts the processes of a box that is about to be stopped. It gives up if init
// does not answer, since that must not prevent the stop.
func procsInTime(ctx context.Context, b Box) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit.UnansweredStopSeconds*time.Second)
	defer cancel()
	return b.Procs(ctx)
}
