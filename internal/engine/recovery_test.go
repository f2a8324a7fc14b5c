package engine

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestUnresponsiveMonitor_IsNotTakenForExited checks that a monitor that outlived its daemon and does not answer the
// first request is not taken for exited: the sandbox is not changed, and the next request finds the monitor.
func TestUnresponsiveMonitor_IsNotTakenForExited(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "1")
	h.run("a", "write", "f", "2")
	b := h.box("a")
	started := len(h.boxes.started)
	h.close()
	h.boxes.unheard = context.DeadlineExceeded
	h.open()
	if _, err := h.Checkout(t.Context(), "a", wire.CheckoutRequest{Node: "HEAD~1"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("checkout: %v", err)
	}
	if _, err := h.Remove(t.Context(), []string{"a"}, false); !fault.Is(err, fault.Unavailable) {
		t.Errorf("rm: %v", err)
	}
	h.boxes.unheard = nil
	h.run("a", "write", "f", "3")
	if h.box("a") != b || len(h.boxes.started) != started {
		t.Errorf("the box was replaced, with %d starts", len(h.boxes.started)-started)
	}
}

// TestStop_KillsUnresponsiveMonitor checks that a monitor that never answers does not prevent
// its sandbox from being stopped or removed.
func TestStop_KillsUnresponsiveMonitor(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	for _, end := range []func() error{
		func() error { _, err := h.Stop(t.Context(), "a"); return err },
		func() error { _, err := h.Remove(t.Context(), []string{"a"}, true); return err },
	} {
		h.run("a", "write", "f", "1")
		b := h.box("a")
		h.close()
		h.boxes.unheard = fault.New(fault.Unavailable, "the keeper neither answers nor ends")
		h.open()
		if err := end(); err != nil {
			t.Errorf("%v", err)
		}
		select {
		case <-b.gone:
		default:
			t.Error("the keeper still runs")
		}
	}
}

// TestRecovery_DoesNotWaitForHungMonitor checks that a monitor that hangs does not delay the start of the daemon for
// long, nor other sandboxes.
func TestRecovery_DoesNotWaitForHungMonitor(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	h.run("a", "write", "f", "1")
	h.run("b", "write", "f", "1")
	a, b := h.box("a"), h.box("b")
	h.close()
	a.hangs.Store(true)
	h.open() // must not hang
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "HEAD"}); err == nil {
		t.Error("a sandbox was used although its keeper has not answered")
	}
	wantStates(t, h, wire.StateUnavailable, wire.StateLive)
	h.run("b", "write", "f", "2")
	if h.box("b") != b {
		t.Error("b has another box")
	}
	a.hangs.Store(false)
	h.run("a", "write", "f", "2")
	if h.box("a") != a {
		t.Error("a has another box")
	}
}

// TestList_DoesNotWaitForHungMonitor checks that a monitor that hangs does not delay a list of sandboxes for long.
func TestList_DoesNotWaitForHungMonitor(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	h.run("a", "write", "f", "1")
	h.run("b", "write", "f", "1")
	wantStates(t, h, wire.StateLive, wire.StateLive)
	h.box("a").hangs.Store(true)
	wantStates(t, h, wire.StateUnavailable, wire.StateLive)
	h.box("a").hangs.Store(false)
	wantStates(t, h, wire.StateLive, wire.StateLive)
}

// wantStates checks the states of all sandboxes, in the order of their names.
func wantStates(t *testing.T, h *home, want ...string) {
	t.Helper()
	all, err := h.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range all {
		got = append(got, s.State)
	}
	if !slices.Equal(got, want) {
		t.Errorf("states %q, want %q", got, want)
	}
}

// TestRecovery_FollowsSlowMonitor checks that a monitor that was slow when the daemon started is followed once it
// answers.
func TestRecovery_FollowsSlowMonitor(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	run, err := h.Run(ctx, "a",
		wire.RunRequest{Cmd: []string{"agent"}, Restart: wire.RestartNo, Capture: wire.Capture{Off: true}})
	if err != nil {
		t.Fatal(err)
	}
	b := h.boxNow("a")
	h.close()
	b.hangs.Store(true)
	h.open()
	b.hangs.Store(false)
	b.mu.Lock()
	close(b.kept[run.Exec])
	b.mu.Unlock()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		rec, err := h.DB.Sandbox(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		if rec.Run.Ended != nil {
			return
		}
	}
	t.Errorf("the exit of its command was not recorded; busy: %v", h.Busy())
}

// TestRecovery_DoesNotWaitForInit checks that a keeper whose init does not answer does not delay the start of the
// daemon.
func TestRecovery_DoesNotWaitForInit(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.keptIn(t, "a")
	b := h.boxNow("a")
	h.close()
	b.mute = make(chan struct{})
	opened := make(chan struct{})
	go func() { h.open(); close(opened) }()
	select {
	case <-opened:
	case <-time.After(time.Minute):
		t.Error("the daemon does not start")
		close(b.mute)
		<-opened
	}
}
