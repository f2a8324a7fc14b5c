//go:build linux

package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestTimedRules_ExpiryRecordedOnStart checks that rules that expire while a sandbox is stopped are recorded once,
// when it starts again, and that an expiry that its gate has reported is not recorded again.
func TestTimedRules_ExpiryRecordedOnStart(t *testing.T) {
	h, clock := newClockedHomeAt(t, time.Now().UTC().Truncate(time.Second))
	ctx := t.Context()
	h.gated("a", "one.example")
	for rule, ms := range map[string]int64{"two.example": 60_000, "three.example": 120_000, "four.example": 600_000} {
		if _, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{rule}, ForMS: ms}); err != nil {
			t.Fatal(err)
		}
	}
	ends := func() (out []wire.NetEvent) {
		t.Helper()
		net, err := h.Net(ctx, "a", wire.NetRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range net.Events {
			if strings.HasPrefix(ev.Reason, wire.NetRulesEnded) {
				out = append(out, ev)
			}
		}
		return out
	}
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Minute) // the gate reports the end of the first rule
	if err := h.NoteEvent(rec.ID, wire.NetEvent{Kind: wire.NetPolicy, Reason: wire.NetRulesEnded}); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Minute)
	for range 2 {
		h.box("a")
		all := ends()
		if len(all) != 2 || all[1].Rule != "three.example:443" || all[1].Policy != h.verdict("a", "one.example").
			Policy || !strings.Contains(all[1].Reason, clock.now().Format(time.RFC3339)) {
			t.Fatalf("%+v", all)
		}
		if _, err := h.Stop(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if rec, err = h.DB.Sandbox(ctx, "a"); err != nil || len(rec.Timed) != 1 || rec.Timed[0].Rule != "four.example:443" {
		t.Errorf("%+v, %v", rec.Timed, err)
	}
}

// TestTimedRules_ExpiryRecordedAfterOtherChange checks that a change of the rules of a stopped sandbox does not lose
// the expiry of other rules.
func TestTimedRules_ExpiryRecordedAfterOtherChange(t *testing.T) {
	for name, change := range map[string]wire.AllowRequest{
		"for good":   {Allow: []string{"five.example"}},
		"for a time": {Deny: []string{"five.example"}, ForMS: 1000},
		"taken back": {RemoveAllow: []string{"one.example:443"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, clock := newClockedHomeAt(t, time.Now().UTC().Truncate(time.Second))
			ctx := t.Context()
			h.gated("a", "one.example")
			if _, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"two.example"}, ForMS: 60_000}); err != nil {
				t.Fatal(err)
			}
			clock.advance(time.Minute)
			if _, err := h.Allow(ctx, "a", change); err != nil {
				t.Fatal(err)
			}
			h.box("a")
			net, err := h.Net(ctx, "a", wire.NetRequest{Kinds: []string{wire.NetPolicy}})
			if err != nil {
				t.Fatal(err)
			}
			var ends []string
			for _, ev := range net.Events {
				if strings.HasPrefix(ev.Reason, wire.NetRulesEnded) {
					ends = append(ends, ev.Rule)
				}
			}
			if len(ends) != 1 || ends[0] != "two.example:443" {
				t.Errorf("%q in %+v", ends, net.Events)
			}
		})
	}
}
