//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// seen returns the process whose arguments contain word.
func (b *Box) seen(t *testing.T, word string) (found wire.Process, ok bool) {
	t.Helper()
	r, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Processes {
		if slices.ContainsFunc(p.Args, func(a string) bool { return strings.Contains(a, word) }) {
			return p, true
		}
	}
	return found, false
}

// gone waits until a process has exited.
func (b *Box) gone(t *testing.T, word string) bool {
	t.Helper()
	for range 200 {
		if _, ok := b.seen(t, word); !ok {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// shown skips the test if the box cannot see its own processes.
func (b *Box) shown(t *testing.T) {
	t.Helper()
	if b.Enforced.State("proc") == plan.Weak {
		t.Skip("needs own-proc: parts of the outer /proc are masked")
	}
}

// looks are the rows about processes.
var looks = []check{
	{"processes are listed", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		if r, err := b.Processes(t.Context()); err != nil || len(r.Processes) != 0 || r.More != 0 {
			t.Errorf("an empty box: %+v, %v", r, err)
		}
		before := time.Now()
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", `sleep 1234 & exec sh -c "while :; do :; done" "$(printf 'a\377b\n\001')" ""`}})
		st := WaitStarted(t, s)
		var p wire.Process
		for range 100 {
			if p, _ = b.seen(t, "while :; do :; done"); p.CPUMS > 50 && len(p.Args) == 5 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if p.PID != st.PID || p.State == "" || p.RSS <= 0 || p.CPUMS <= 0 || p.Start == 0 || p.Name == "" {
			t.Errorf("%+v: want process %d", p, st.PID)
		}
		if d := p.Started.Sub(before); d < -2*time.Second || d > time.Minute {
			t.Errorf("it was started %v after we did so", d)
		}
		if len(p.Args) != 5 || p.Args[3] != "a\ufffdb\n\x01" || len(p.Raw) != 5 ||
			string(p.Raw[3]) != "a\xffb\n\x01" || p.Cut {
			t.Errorf("%+v", p)
		}
		kid, ok := b.seen(t, "1234")
		if !ok || kid.PPID != p.PID || kid.Raw != nil {
			t.Errorf("%+v", kid)
		}
		if _, ok := b.seen(t, "coppice"); ok {
			t.Error("init is in the list")
		}
	}},
	{"a list of many processes with long arguments", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", `i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait`,
					strings.Repeat("\x01", 100_000)}})
		WaitOutput(t, s, "ready")
		r, err := b.Processes(t.Context())
		if err != nil || len(r.Processes) < 151 {
			t.Fatalf("%d processes, %v", len(r.Processes), err)
		}
		if p, ok := b.seen(t, "while"); !ok || !p.Cut {
			t.Errorf("%v: %d arguments, cut %v", ok, len(p.Args), p.Cut)
		}
	}},
	{"one process is signalled", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		b.Sh(t, "sleep 4321 & sleep 4322 &")
		p, ok := b.seen(t, "4321")
		if !ok {
			t.Fatal("it does not run")
		}
		if err := b.SignalProcess(t.Context(), p.PID,
			wire.ProcessSignal{Name: "TERM", Start: p.Start + 1}); !fault.Is(err, fault.NotFound) {
			t.Errorf("one that was started later: %v", err)
		}
		if _, ok := b.seen(t, "4321"); !ok {
			t.Fatal("it is gone")
		}
		if err := b.SignalProcess(t.Context(), p.PID, wire.ProcessSignal{Name: "SIGKILL", Start: p.Start}); err != nil {
			t.Error(err)
		}
		if !b.gone(t, "4321") {
			t.Error("it runs on")
		}
		if _, ok := b.seen(t, "4322"); !ok {
			t.Error("its neighbour is gone")
		}
		var err error
		for range 200 { // an exiting process loses its arguments before it has exited
			if err = b.SignalProcess(t.Context(), p.PID, wire.ProcessSignal{Name: "KILL"}); err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("one that is gone: %v", err)
		}
	}},
	{"no other process is signalled", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		outside := []int{-1, 0, 1}
		if tier.Name == plan.TierWorkspace {
			outside = append(outside, os.Getpid(), os.Getppid())
		}
		for _, pid := range append(outside, 1<<30) {
			if err := b.SignalProcess(t.Context(), pid, wire.ProcessSignal{Name: "KILL"}); !fault.Is(err, fault.Denied) &&
				!fault.Is(err, fault.NotFound) {
				t.Errorf("process %d: %v", pid, err)
			}
		}
		if err := b.SignalProcess(t.Context(), 2, wire.ProcessSignal{Name: "NONE"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("no signal: %v", err)
		}
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sleep", "30"}})
		WaitStarted(t, s)
		p, ok := b.seen(t, "30")
		if !ok {
			t.Fatal("it does not run")
		}
		if tier.Name == plan.TierWorkspace { // its parent is init
			if err := b.SignalProcess(t.Context(), p.PPID, wire.ProcessSignal{Name: "KILL"}); !fault.Is(err, fault.Denied) {
				t.Errorf("init: %v", err)
			}
		}
		if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
			t.Errorf("%+v", r)
		}
	}},
	{"a signal waits for a thaw", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		b.Sh(t, "sleep 5678 &")
		p, _ := b.seen(t, "5678")
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- b.SignalProcess(context.Background(), p.PID, wire.ProcessSignal{Name: "KILL", Start: p.Start})
		}()
		select {
		case err := <-done:
			t.Errorf("it did not wait: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !b.gone(t, "5678") {
			t.Error("it runs on")
		}
	}},
}
