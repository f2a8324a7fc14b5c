package sandbox

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// hold takes the lock of a sandbox, which must be free.
func hold(t *testing.T, b *Sandbox, what string) *Held {
	t.Helper()
	h, err := b.Lock(t.Context(), "a", what)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestLock_NamesTheHolder(t *testing.T) {
	b := New("0123456789ab")
	h := hold(t, b, "capturing")
	if again := b.TryLock("looking"); again != nil {
		t.Fatal("two callers hold the lock")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("its patience is at an end")
	cancel(cause)
	_, err := b.Lock(ctx, "a", "stopping")
	if !fault.Is(err, fault.Conflict) || !errors.Is(err, cause) ||
		!strings.Contains(err.Error(), "sandbox a is busy: capturing") {
		t.Errorf("%v: want a Conflict that names sandbox, holder and cause", err)
	}
	h.Unlock()
	next := b.TryLock("looking")
	if next == nil {
		t.Fatal("the lock was not released")
	}
	next.Unlock()
}

func TestLock_ExcludesOthers(t *testing.T) {
	b := New("0123456789ab")
	var n Guarded[int]
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				h, err := b.Lock(t.Context(), "a", "counting")
				if err != nil {
					t.Error(err)
					return
				}
				*n.Of(h)++
				h.Unlock()
			}
		})
	}
	all.Wait()
	h := hold(t, b, "reading")
	defer h.Unlock()
	if got := *n.Of(h); got != 800 {
		t.Errorf("counted %d of 800", got)
	}
}

func TestCancelStarts(t *testing.T) {
	b := New("0123456789ab")
	h := hold(t, b, "starting")
	defer h.Unlock()
	cause := errors.New("the sandbox was stopped")
	started, done := h.Starting(t.Context())
	over := b.CancelStarts(cause)
	if context.Cause(started) != cause {
		t.Errorf("the start in progress: %v, want it cancelled", context.Cause(started))
	}
	done()
	next, done := h.Starting(t.Context())
	if context.Cause(next) != cause {
		t.Errorf("a start during CancelStarts: %v, want it cancelled", context.Cause(next))
	}
	done()
	over()
	free, done := h.Starting(t.Context())
	defer done()
	if free.Err() != nil {
		t.Error("a start was cancelled although no stop waits")
	}
}

func TestPreempt_EndsWithItsCaller(t *testing.T) {
	b := New("0123456789ab")
	h := hold(t, b, "capturing")
	defer h.Unlock()
	over := b.Preempt(0, errors.New("the sandbox was stopped"))
	capture, released := h.Capturing(t.Context())
	<-capture.Done()
	released()
	again, released := h.Capturing(t.Context())
	if again.Err() == nil {
		t.Error("a capture was not cancelled although a stop waits")
	}
	released()
	over()
	next, released := h.Capturing(t.Context())
	defer released()
	if next.Err() != nil {
		t.Error("a capture was cancelled although no stop waits")
	}
}

// TestPreempt_AfterItsCaller checks that a Preempt that is over before its time cancels no capture later.
func TestPreempt_AfterItsCaller(t *testing.T) {
	b := New("0123456789ab")
	h := hold(t, b, "capturing")
	defer h.Unlock()
	capture, released := h.Capturing(t.Context())
	defer released()
	b.Preempt(time.Hour, errors.New("the sandbox was stopped"))()
	if capture.Err() != nil {
		t.Error("the capture is cancelled")
	}
}

// loser is a stream whose client can disconnect.
type loser struct{ lost func() }

func (l *loser) WatchLoss(lost func()) (stop func()) { l.lost = lost; return func() {} }

func TestWithWaiter_CancelsAStart(t *testing.T) {
	b := New("0123456789ab")
	h := hold(t, b, "starting")
	defer h.Unlock()
	client := new(loser)
	waited, stop := WithWaiter(t.Context(), client)
	defer stop()
	started, done := h.Starting(waited)
	defer done()
	client.lost()
	<-started.Done()
	if !fault.Is(context.Cause(started), fault.Cancelled) || waited.Err() != nil {
		t.Errorf("the start: %v, the rest: %v; want only the start cancelled", context.Cause(started), waited.Err())
	}
}
