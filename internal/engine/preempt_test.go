//go:build linux

package engine

import (
	"errors"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Captures that wait for an init that the sandbox starves hold its lock. Neither they nor the
// captures queued behind them delay a stop.
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
			if !fault.Is(err, fault.Cancelled) && !fault.Is(err, fault.NotFound) { // it may come after the removal
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

func TestPreempt_EndsWithWhoWaits(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	s := h.sandbox(h.id("a"))
	cause := errors.New("the sandbox was stopped")
	over := h.preempt(s, 0, cause)
	// It begins by itself, in its own time.
	hold, released := h.preemptible(t.Context(), s)
	<-hold.Done()
	released()
	again, released := h.preemptible(t.Context(), s)
	if again.Err() == nil {
		t.Error("a capture begins while a stop of the sandbox waits")
	}
	released()
	over()
	next, released := h.preemptible(t.Context(), s)
	defer released()
	if next.Err() != nil {
		t.Error("a capture is cancelled although no stop waits")
	}
}

// A sandbox whose init does not answer may have any number of processes, and not none.
func TestStop_SaysThatProcessesAreNotCounted(t *testing.T) {
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
