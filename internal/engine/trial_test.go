//go:build linux

package engine

import (
	"context"
	"math"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/tail"
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
		"a timeout":                  {Cmd: "a", TimeoutMS: -1},
		"a timeout beyond the limit": {Cmd: "a", TimeoutMS: limit.Trial.Milliseconds() + 1},
		"a timeout that overflows":   {Cmd: "a", TimeoutMS: math.MaxInt64}} {
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

// TestTrial_LeavesTurnsToOthers checks that many trials of one sandbox, which end late or never, do not keep those of
// another sandbox waiting.
func TestTrial_LeavesTurnsToOthers(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	if h.TrialsAtOnce() < 2 {
		t.Skip("needs processors: one trial runs at a time on a machine with one")
	}
	within, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range h.TrialsAtOnce() + 2 {
		all.Go(func() {
			if got, err := h.Trial(within, "a", wire.TrialRequest{Cmd: "wait"}); err == nil {
				t.Errorf("%+v", got)
			}
		})
	}
	for range 3 {
		got, err := h.Trial(ctx, "b", wire.TrialRequest{Cmd: "exit 1"})
		if err != nil || got.Exit != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	cancel()
	all.Wait()
	if list, err := h.List(ctx); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestDurations_DoNotOverflow sends times beyond what a time.Duration can hold: converted, each would be another time.
func TestDurations_DoNotOverflow(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	const most = math.MaxInt64
	for name, call := range map[string]func(ms int64) error{
		"exec": func(ms int64) error {
			_, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: tournament.Shell("exit 0"), TimeoutMS: ms}, &tail.Client{})
			return err
		},
		"capture": func(ms int64) error {
			_, err := h.Exec(ctx, "a", wire.ExecRequest{Cmd: tournament.Shell("exit 0"),
				Capture: wire.Capture{QuietMS: 200, MaxMS: ms}}, &tail.Client{})
			return err
		},
		"rewind": func(ms int64) error {
			_, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: "HEAD", GraceMS: ms})
			return err
		},
		"create": func(ms int64) error {
			_, err := h.Create(ctx, wire.CreateRequest{Name: "b", KeepForMS: ms}, nil)
			return err
		},
		"gc": func(ms int64) error {
			_, err := h.GC(ctx, wire.GCRequest{Keep: wire.Keep{WithinMS: ms}}, nil)
			return err
		},
		"tournament": func(ms int64) error {
			_, err := h.Tournament(ctx, "a", wire.TournamentRequest{Test: "exit 0", Candidates: candidates("exit 0"),
				TimeoutMS: ms}, nil)
			return err
		},
	} {
		for _, ms := range []int64{most, most/1_000_000 + 1, limit.Life.Milliseconds() + 1} {
			if err := call(ms); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
				t.Errorf("%s: %d ms: %v", name, ms, err)
			}
		}
	}
}
