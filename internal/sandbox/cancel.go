package sandbox

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// work is an operation by the holder of a lock that other callers may cancel.
type work struct {
	cancel context.CancelCauseFunc // cancels the operation in progress; nil if there is none
	causes []error                 // why operations are forbidden; empty if they are not
}

// begin returns the context of an operation that starts. It is already canceled if the operation is forbidden.
func (w *work) begin(ctx context.Context) context.Context {
	ctx, w.cancel = context.WithCancelCause(ctx)
	if len(w.causes) > 0 {
		w.cancel(w.causes[0])
	}
	return ctx
}

// end records that the operation has ended.
func (w *work) end() {
	w.cancel(nil)
	w.cancel = nil
}

// forbid cancels the operation in progress, and those that start before permit.
func (w *work) forbid(cause error) {
	w.causes = append(w.causes, cause)
	if w.cancel != nil {
		w.cancel(cause)
	}
}

func (w *work) permit(cause error) {
	w.causes = slices.DeleteFunc(w.causes, func(err error) bool { return err == cause }) //nolint:errorlint // removes this value, not one that wraps it
}

// Starting returns the context of a start, which is canceled by CancelStarts and by the loss of the client that waits
// for the start (see WithWaiter). While CancelStarts is in effect, the context is already canceled. The caller calls
// done.
func (h *Held) Starting(ctx context.Context) (_ context.Context, done func()) {
	ctx, unawaited := WhileAwaited(ctx)
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.b.start.begin(ctx), func() {
		h.b.mu.Lock()
		defer h.b.mu.Unlock()
		h.b.start.end()
		unawaited()
	}
}

// CancelStarts cancels the start of the sandbox that is in progress, and later ones until over is called. It does not
// wait for the lock.
func (b *Sandbox) CancelStarts(cause error) (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start.forbid(cause)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.start.permit(cause)
	}
}

// Capturing returns the context of a capture, which Preempt cancels. The caller calls done.
func (h *Held) Capturing(ctx context.Context) (_ context.Context, done func()) {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	return h.b.capture.begin(ctx), func() {
		h.b.mu.Lock()
		defer h.b.mu.Unlock()
		h.b.capture.end()
	}
}

// Preempt cancels captures of the sandbox once after has passed: the one in progress, and later ones until over is
// called. It does not wait for the lock.
func (b *Sandbox) Preempt(after time.Duration, cause error) (over func()) {
	ended := false // guarded by b.mu
	late := time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !ended {
			b.capture.forbid(cause)
		}
	})
	return func() {
		late.Stop()
		b.mu.Lock()
		defer b.mu.Unlock()
		ended = true
		b.capture.permit(cause)
	}
}

// waiterKey is the context key of WithWaiter.
type waiterKey struct{}

// WithWaiter returns a context in which a start is canceled when the client at the other end of stream disconnects,
// if stream can detect that. Nothing else is canceled: a command outlives its client. The caller calls stop before it
// reads from stream; stop may be called twice.
func WithWaiter(ctx context.Context, stream any) (_ context.Context, stop func()) {
	s, ok := stream.(interface {
		WatchLoss(lost func()) (stop func())
	})
	if !ok {
		return ctx, func() {}
	}
	waiter, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unwatch := s.WatchLoss(func() {
		cancel(fault.New(fault.Cancelled, "the client disconnected before the command started"))
	})
	return context.WithValue(ctx, waiterKey{}, waiter), sync.OnceFunc(unwatch)
}

// WhileAwaited returns a context that is canceled with ctx, or when the client that waits for the start of a
// command disconnects. The caller calls done.
func WhileAwaited(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	waiter, ok := ctx.Value(waiterKey{}).(context.Context)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	unhook := context.AfterFunc(waiter, func() { cancel(context.Cause(waiter)) })
	return ctx, func() { unhook(); cancel(nil) }
}
