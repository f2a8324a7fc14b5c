//go:build linux

package egress

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

type hears struct {
	*fakeCore
	said []audit.Statement
}

func (h *hears) Drafts(_ context.Context, _ *meta.Sandbox, all ...audit.Statement) []ledger.Draft {
	h.said = all
	return nil
}

// TestDeny_RecordsExpiryOfEachRule checks that each answer is recorded with the expiry of the rule that it adds.
func TestDeny_RecordsExpiryOfEachRule(t *testing.T) {
	control, core := newFake(t)
	h := &hears{fakeCore: core}
	control.config.Recorder = h
	if _, err := control.Deny(t.Context(), "a", wire.AnswerRequest{Rules: []string{"long.example"}, ForMS: (3 * time.Hour).Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Deny(t.Context(), "a",
		wire.AnswerRequest{Rules: []string{"short.example", "long.example"}, ForMS: time.Hour.Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	ends := map[string]string{}
	for _, r := range core.rec.Timed {
		ends[r.Rule] = r.Until.UTC().Format(time.RFC3339)
	}
	for _, s := range h.said {
		if a, ok := s.Body.(*format.Approval); ok && a.Until != ends[a.Question] {
			t.Errorf("the answer about %s is recorded until %s, its rule ends at %s", a.Question, a.Until, ends[a.Question])
		}
	}
}
