//go:build linux

package engine

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestCancelStart checks that stop and remove cancel a start that hangs.
func TestCancelStart(t *testing.T) {
	for name, end := range map[string]func(*home, context.Context) error{
		"stop": func(h *home, ctx context.Context) error { _, err := h.Stop(ctx, "a"); return err },
		"rm":   func(h *home, ctx context.Context) error { _, err := h.Remove(ctx, []string{"a"}, true); return err },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.onDir("a")
			begun := make(chan struct{})
			h.boxes.begun = func(ctx context.Context) error {
				close(begun)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			failed := make(chan error, 1)
			go func() { _, err := h.Start(t.Context(), "a"); failed <- err }()
			<-begun
			if err := end(h, t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-failed; !fault.Is(err, fault.Cancelled) {
				t.Errorf("the start ended with %v", err)
			}
		})
	}
}

// TestCancelStart_BeforeBoxStarts stops a sandbox while a start holds its lock and has not started its processes yet.
func TestCancelStart_BeforeBoxStarts(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	ctx := t.Context()
	s, rec, err := h.acquire(ctx, "a", "starting")
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { _, err := h.Stop(ctx, "a"); stopped <- err }()
	for waits := false; !waits; runtime.Gosched() {
		begun, done := s.Starting(ctx)
		waits = begun.Err() != nil
		done()
	}
	if _, _, err := h.startBox(ctx, s, &rec, nil); !fault.Is(err, fault.Cancelled) || len(h.boxes.started) > 0 {
		t.Errorf("the start ended with %v, and %d boxes", err, len(h.boxes.started))
	}
	s.unlock(h.Engine)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := h.Start(ctx, "a"); err != nil {
		t.Errorf("a start after the stop: %v", err)
	}
}

// TestStop_CancelsACapture checks that captures do not delay a stop: neither those that hold the lock and wait for an
// init that the sandbox starves, nor those that wait for the lock.
func TestStop_CancelsACapture(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "1")
	b := h.box("a")
	b.starved.Store(true)
	var captures sync.WaitGroup
	for range 3 {
		captures.Go(func() {
			_, err := h.Commit(t.Context(), "a", "x")
			if !fault.Is(err, fault.Cancelled) && !fault.Is(err, fault.NotFound) { // it may start after the removal
				t.Errorf("commit: %v, want it cancelled", err)
			}
		})
	}
	<-b.starving
	if _, err := h.Remove(t.Context(), []string{"a"}, true); err != nil {
		t.Errorf("rm --force: %v", err)
	}
	captures.Wait()
}

// TestStop_ReportsUncountedProcesses covers a sandbox whose init does not answer: the number of its processes is
// reported as unknown, not as none.
func TestStop_ReportsUncountedProcesses(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "1")
	h.box("a").starved.Store(true)
	if got, err := h.Stop(t.Context(), "a"); err != nil || !got.Uncounted {
		t.Errorf("Stop: %+v, %v, want the processes not counted", got, err)
	}
	h.run("a", "write", "f", "2")
	if got, err := h.Stop(t.Context(), "a"); err != nil || got.Uncounted {
		t.Errorf("Stop: %+v, %v, want the processes counted", got, err)
	}
}
