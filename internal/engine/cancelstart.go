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

// waiterKey is the key of the context of the client that waits for a command to begin.
type waiterKey struct{}

// withWaiter gives a context in which a start ends when the client at the other end of stream
// goes away, where stream can say so. Everything else goes on: a command outlives its client.
// The caller calls stop before it reads from stream; it may be called twice.
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

// whileAwaited gives a context that ends with ctx, and when no client waits any more for the
// command that is about to begin. The caller calls done.
func whileAwaited(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	waiter, ok := ctx.Value(waiterKey{}).(context.Context)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	unhook := context.AfterFunc(waiter, func() { cancel(context.Cause(waiter)) })
	return ctx, func() { unhook(); cancel(nil) }
}

// cancellable gives the context of a start that stop and rm end: a start holds the
// sandbox's lock, which they need. It has ended where one of them waits already. The caller
// holds the lock, and calls done.
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

// cancelStarts ends the start of a sandbox that is under way, and those that come to it
// before over is called. It does not wait for the sandbox's lock.
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
		s.unstarted = slices.DeleteFunc(s.unstarted, func(err error) bool { return err == cause }) //nolint:errorlint // this very one
	}
}

// procsInTime counts the processes of a box that is about to be stopped. It gives up on an
// init that does not answer, which must not keep the box from being stopped.
func procsInTime(ctx context.Context, b Box) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit.UnansweredStopSeconds*time.Second)
	defer cancel()
	return b.Procs(ctx)
}
