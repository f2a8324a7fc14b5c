//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What a sandbox causes without its owner has a budget (audit.Budget). Records beyond it
// are counted in a lost record, changes requested from inside are refused, and automatic
// snapshots wait.

// beyondBudget is the reason in a lost record.
const beyondBudget = "the sandbox caused more records than its budget allows"

// budgetOf returns the budget of a sandbox. A new daemon reads from the ledger what was spent
// before, so that a restart does not refill a budget.
func (e *Engine) budgetOf(ctx context.Context, s *entry) (*audit.Budget, error) {
	s.budgeting.Lock()
	defer s.budgeting.Unlock()
	if s.budget != nil {
		return s.budget, nil
	}
	b, err := e.spentBefore(ctx, s.ID)
	if err != nil {
		return nil, fault.Wrap(err, "find how much sandbox %s has recorded of late", s.ID)
	}
	s.budget = b
	return b, nil
}

// spentBefore makes the budget of a sandbox from its newest records.
func (e *Engine) spentBefore(ctx context.Context, id timeline.SandboxID) (*audit.Budget, error) {
	now, of := e.Now(), format.Sandbox(id)
	b := audit.NewBudget(now)
	if _, err := e.Ledger.Last(ctx, of); err != nil { // appended records can be read now
		return nil, err
	}
	for r, err := range e.Ledger.Read(ctx, of, ledger.Filter{Since: now.Add(-limit.EvidenceRefill), Kinds: audit.ChargedKinds()}) {
		if err != nil {
			return nil, err
		}
		if c, n, ok := audit.Charge(r.Observer, r.Body); ok {
			b.Spent(r.Time, c, n)
		}
		if p, ok := r.Body.(*format.Program); ok && p.List != "" {
			n, err := e.Ledger.BlobSize(of, p.List)
			if err != nil {
				return nil, err
			}
			b.Spent(r.Time, audit.ClassLists, n)
		}
	}
	return b, nil
}

// mayChange refuses a request from inside a sandbox that exceeds its budget; changed charges
// the budget. Requests from outside are always allowed.
func (e *Engine) mayChange(ctx context.Context, s *entry, rec *meta.Sandbox) (changed func(), err error) {
	if !Inside(ctx) {
		return func() {}, nil
	}
	b, err := e.budgetOf(ctx, s)
	if err != nil {
		return nil, err
	}
	if wait := b.Wait(e.Now(), audit.ClassInside); wait > 0 {
		wait = (wait + time.Second - 1).Truncate(time.Second)
		return nil, fault.New(fault.Unavailable, "sandbox %s has asked for %d snapshots, rewinds and tags from inside; the next may be asked for in %s", rec.Name, limit.InsideChanges, wait).
			WithHint("from outside the sandbox, the number of commits is not limited: coppice commit %s", rec.Name)
	}
	return func() { b.Spent(e.Now(), audit.ClassInside, 1) }, nil
}

// admit keeps the drafts for which the sandbox has a budget, and counts the others by kind.
func (e *Engine) admit(b *audit.Budget, drafts []ledger.Draft) (kept []ledger.Draft, over []format.Lost) {
	now := e.Now()
	for _, d := range drafts {
		if b.Admit(now, d.Observer, d.Body) {
			kept = append(kept, d)
			continue
		}
		over = addLost(over, unrecorded(d.Body))
	}
	return kept, over
}

// addLost adds to a list of losses. Those of the same kind and reason become one count.
func addLost(list []format.Lost, more ...format.Lost) []format.Lost {
	for _, m := range more {
		i := 0
		for i < len(list) && (list[i].Of != m.Of || list[i].Reason != m.Reason) {
			i++
		}
		if i == len(list) {
			list = append(list, m)
			continue
		}
		list[i].Count += m.Count
	}
	return list
}

// unrecorded returns the loss record for a record beyond its budget.
func unrecorded(body format.Body) format.Lost {
	l := format.Lost{Count: 1, Of: string(body.Kind()), Reason: beyondBudget}
	switch b := body.(type) {
	case *format.Denial:
		l.Count = max(1, b.Count)
	case *format.Network:
		l.Count = max(1, b.Count)
	case *format.Lost: // already a count
		l.Count, l.Of = b.Count, b.Of
	}
	return l
}
