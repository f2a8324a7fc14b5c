//go:build linux

package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// undoneOf returns the sorted sequence numbers of the undone records of a sandbox.
func (h *home) undoneOf(id timeline.SandboxID) (all []int64) {
	h.t.Helper()
	for _, r := range h.told(id, format.KindUndone) {
		all = append(all, r.Body.(*format.Undone).Seq)
	}
	slices.Sort(all)
	return all
}

// killed stops the engine as if it had been killed before it stored a checkpoint, and opens the next one.
func (h *home) killed() {
	h.t.Helper()
	h.close()
	h.forgetAgreed()
	h.open()
}

// TestRecovery_KeepsRuleBesideExpiredOne checks that a permanent rule is in force after a crash even if a timed rule
// beside it has expired since, so that the policy in force is not the one that the record names.
func TestRecovery_KeepsRuleBesideExpiredOne(t *testing.T) {
	t.Parallel()
	h, clock := newClockedHomeAt(t, time.Now().UTC().Truncate(time.Second))
	h.gated("a", "one.example")
	for _, req := range []wire.AllowRequest{
		{Allow: []string{"two.example"}, ForMS: 60_000}, {Allow: []string{"three.example"}},
	} {
		if _, err := h.Allow(ctx, "a", req); err != nil {
			t.Fatal(err)
		}
	}
	clock.advance(2 * time.Minute)
	for range 2 {
		h.killed()
		if undone := h.undoneOf(h.id("a")); len(undone) > 0 {
			t.Errorf("undone: %v", undone)
		}
		h.box("a") // records that the rule has expired
	}
}

// TestRecovery_UndoesUnfinishedRuleChange checks that the records of a change of the rules that a crash interrupted
// are undone: the change, timed or not, and the answers that it consists of. Earlier changes stay.
func TestRecovery_UndoesUnfinishedRuleChange(t *testing.T) {
	t.Parallel()
	for name, until := range map[string]string{
		"for good": "", "for a time": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.asking("a")
			if _, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"one.example"}, ForMS: 60_000}); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"two.example"}}); err != nil {
				t.Fatal(err)
			}
			rec, err := h.DB.Sandbox(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			drafts := h.Book.Drafts(ctx, &rec, audit.ByDaemon(
				&format.Policy{After: "sha256:00", Before: rec.Policy, Reason: "coppice net approve: three.example:443",
					Until: until},
				&format.Approval{Answer: "allow", Question: "three.example", Until: until},
				&format.Approval{Answer: "allow", Question: "four.example", Until: until},
			)...)
			cut, err := h.Book.Append(ctx, drafts...)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time must add no record
				h.killed()
				want := []int64{cut[0].Seq, cut[1].Seq, cut[2].Seq}
				if undone := h.undoneOf(rec.ID); !slices.Equal(undone, want) {
					t.Errorf("undone: %v, want %v", undone, want)
				}
			}
		})
	}
}
