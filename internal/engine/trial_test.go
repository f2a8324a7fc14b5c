//go:build linux

package engine

import (
	"context"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// alone fails the test unless the sandbox is the only one.
func (h *home) alone(name string) {
	h.t.Helper()
	list, err := h.List(ctx)
	if err != nil || len(list) != 1 || list[0].Name != name {
		h.t.Errorf("%v, %v", list, err)
	}
}

func TestTrial_RemovesItsFork(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	for cmd, want := range map[string]wire.Trial{
		"write x 1;has x;say done": {Tail: "done"},
		"has x":                    {Exit: 1, Tail: "no x"},
		"exit 3":                   {Exit: 3},
	} {
		got, err := h.Trial(ctx, "a", wire.TrialRequest{Cmd: cmd})
		want.Cmd, want.TimeMS = cmd, got.TimeMS
		if err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
		h.alone("a")
	}
	if got, err := h.Trial(ctx, "a", wire.TrialRequest{Cmd: "hang", TimeoutMS: 1}); err != nil || !got.TimedOut ||
		got.Exit != tournament.ExitTimeout {
		t.Errorf("%+v, %v", got, err)
	}
	for name, req := range map[string]wire.TrialRequest{"no command": {}, "a zero byte": {Cmd: "a\x00"},
		"a timeout": {Cmd: "a", TimeoutMS: -1}} {
		if _, err := h.Trial(ctx, "a", req); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.Trial(ctx, "nobody", wire.TrialRequest{Cmd: "a"}); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	h.alone("a")
}

// TestTrial_CancelLeavesNothing checks that trials leave no forks behind if their clients disconnect, also with many
// at once.
func TestTrial_CancelLeavesNothing(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := h.Trial(gone, "a", wire.TrialRequest{Cmd: "hang"}); err == nil {
		t.Error("a trial of an unknown sandbox")
	}
	h.alone("a")
	var all sync.WaitGroup
	for range 2 * h.TrialsAtOnce() {
		all.Go(func() {
			if got, err := h.Trial(ctx, "a", wire.TrialRequest{Cmd: "exit 1"}); err != nil || got.Exit != 1 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	all.Wait()
	h.alone("a")
}
