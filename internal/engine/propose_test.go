//go:build linux

package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/repo"
)

// TestLedgerSummary_EndsWithItsContext covers a sandbox with many records, most of which a summary only counts.
func TestLedgerSummary_EndsWithItsContext(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	rec, err := h.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, err := h.Book.Append(t.Context(),
			h.Book.Drafts(t.Context(), &rec, audit.ByDaemon(&format.Limit{Limit: "time"})...)...); err != nil {
			t.Fatal(err)
		}
	}
	ctx := looptest.EndsAfter(t, 50)
	if res, err := h.LedgerSummary(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v, want it cancelled", res, err)
	}
	if n := ctx.Calls(); n > 60 {
		t.Errorf("LedgerSummary checked its context %d times, which ended after 50", n)
	}
}

// TestPropose_EndsWithItsContext checks that a proposal that is canceled at any step before it is written sets no
// branch and is recorded as undone.
func TestPropose_EndsWithItsContext(t *testing.T) {
	p := newProject(t)
	p.mustMake("a", wire.RepoRequest{})
	start := p.git("rev-parse", "HEAD")
	p.git("checkout", "-q", "-b", "work")
	work := p.commit("two", map[string]string{"a": "2", "package.json": "{}"})
	p.git("checkout", "-q", "main")
	rec, err := p.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.trees.Repository(t.Context(), &rec)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n = 2 * n {
		ctx := looptest.EndsAfter(t, int64(n))
		c := &gitwork.Collected{
			Rec: rec, Repo: r, Start: repo.OID(start), Tip: repo.OID(work), Work: repo.OID(work), Commits: 1,
			Snapshot: rec.Head,
		}
		m, err := p.Git.Prepare(t.Context(), c, wire.ProposeRequest{})
		if err != nil {
			t.Fatal(err)
		}
		err = m.Hand(ctx)
		if err == nil {
			if n < 8 {
				t.Errorf("Hand checked its context less than %d times", n)
			}
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("after %d steps: %v, want it cancelled", n, err)
		}
		if refs, err := r.Refs(t.Context(), m.Branch); err != nil || len(refs) > 0 {
			t.Errorf("after %d steps: %v, %v, want no branch", n, refs, err)
		}
		var last format.Body
		for r, err := range p.Ledger.Read(t.Context(), format.Sandbox(rec.ID),
			ledger.Filter{Kinds: []format.Kind{format.KindPropose, format.KindUndone}}) {
			if err != nil {
				t.Fatal(err)
			}
			last = r.Body
		}
		if _, ok := last.(*format.Undone); !ok {
			t.Errorf("after %d steps the last record is %T, want it undone", n, last)
		}
	}
	if got := p.git("rev-parse", "coppice/a"); got != work {
		t.Errorf("the branch is %s, want %s", got, work)
	}
}
