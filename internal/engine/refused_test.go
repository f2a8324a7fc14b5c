//go:build linux

package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// TestRefusedCalls_AreRecordedOnce checks that refused system calls that monitors report are
// recorded once, in any tier, and not as network events.
func TestRefusedCalls_AreRecordedOnce(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	id := h.id("a")
	h.gateTells(id,
		wire.NetEvent{Kind: wire.NetRefused, Syscall: "bpf", Program: "/p --token=ghp_abcdefghijklmnopqrstuvwxyz0123456789",
			PID: 7, Exec: "x1", Reason: "EPERM", Count: 3},
		to("one.example"), wire.NetEvent{Kind: wire.NetRefused, Reason: wire.RefusedUntold, Count: 9})
	for range 2 {
		h.journals.CatchUp(ctx, id)
		h.close()
		h.open()
	}
	if all := h.told(id, format.KindDenial); len(all) != 1 || all[0].Observer != format.ByKernel {
		t.Fatalf("%d denials", len(all))
	}
	program := h.cleaners.Formats().RecordText("/p --token=ghp_abcdefghijklmnopqrstuvwxyz0123456789")
	if d := last[*format.Denial](h, id); d.Syscall != "bpf" || d.Exec != "x1" || d.PID != 7 || d.Count != 3 ||
		d.Reason != "answered with EPERM" || d.Program != program {
		t.Errorf("%+v", d)
	}
	if l := last[*format.Lost](h, id); l == nil || l.Of != "denial" || l.Count != 9 {
		t.Errorf("%+v", l)
	}
	for kind, want := range map[string]int{"": 1, wire.NetRefused: 2, wire.NetDeny: 1} {
		req := wire.NetRequest{}
		if kind != "" {
			req.Kinds = []string{kind}
		}
		if res, err := h.Net(ctx, "a", req); err != nil || len(res.Events) != want {
			t.Errorf("%q: %d events, %v; want %d", kind, len(res.Events), err, want)
		}
	}
}

// TestRefusedCalls_AreRecordedWithoutGate covers a sandbox without gate and honeytokens, whose monitor is polled
// while it runs.
func TestRefusedCalls_AreRecordedWithoutGate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	h.gateTells(h.id("a"), wire.NetEvent{Kind: wire.NetRefused, Syscall: "mount", Reason: "EPERM"})
	found := errors.New("found")
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := h.FollowLedger(limited, "a", wire.LedgerRequest{Kinds: []string{"denial"}}, func(r wire.LedgerRecord) error {
		if r.Kind == "denial" && r.Body["syscall"] == "mount" {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Error(err)
	}
}
