//go:build linux

package audit

import (
	"context"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// unwritten is the reason of losses that could not be written before their sandbox was removed.
const unwritten = "the ledger could not be written before the sandbox was removed"

// BeyondBudget is the reason of losses beyond the budget of a sandbox.
const BeyondBudget = "the sandbox caused more records than its budget allows"

// Budgets holds the Budget of each sandbox, for what the sandbox causes without its owner. Records beyond the budget
// are counted in a lost record, changes that are requested from inside are refused, and automatic snapshots wait. Its
// methods are safe for concurrent use.
type Budgets struct {
	ledger *ledger.Ledger
	now    func() time.Time

	mu        sync.Mutex // held last: see docs/design/locks.md
	sandboxes map[timeline.SandboxID]*sandboxBudget
}

// sandboxBudget is the budget of one sandbox.
type sandboxBudget struct {
	of timeline.SandboxID // never changed

	mu     sync.Mutex // held while the ledger is read; taken after all other locks but Budgets.mu
	budget *Budget    // guarded by mu; nil until first used
}

// NewBudgets returns the Budgets of the sandboxes whose records are in a ledger, which the caller closes. now is the
// clock.
func NewBudgets(l *ledger.Ledger, now func() time.Time) *Budgets {
	return &Budgets{ledger: l, now: now, sandboxes: map[timeline.SandboxID]*sandboxBudget{}}
}

// Of returns the budget of a sandbox, the same one until Forget. The first call reads from the audit log what was
// spent before, so that a restart of the daemon does not refill a budget.
func (m *Budgets) Of(ctx context.Context, id timeline.SandboxID) (*Budget, error) {
	m.mu.Lock()
	s := m.sandboxes[id]
	if s == nil {
		s = &sandboxBudget{of: id}
		m.sandboxes[id] = s
	}
	m.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.budget != nil {
		return s.budget, nil
	}
	b, err := m.spentBefore(ctx, s.of)
	if err != nil {
		return nil, fault.Wrap(err, "read the record budget of sandbox %s", id)
	}
	s.budget = b
	return b, nil
}

// MayChange refuses a change that is requested from inside a sandbox and exceeds its budget. The caller calls changed
// to charge the budget. Requests from outside are always allowed.
func (m *Budgets) MayChange(ctx context.Context, rec *meta.Sandbox) (changed func(), err error) {
	if !Inside(ctx) {
		return func() {}, nil
	}
	b, err := m.Of(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	if wait := b.Wait(m.now(), ClassInside); wait > 0 {
		return nil, fault.New(fault.Unavailable,
			"too many requests from inside sandbox %s: %d snapshots, rewinds and tags; the next is allowed in %s", rec.Name,
			limit.InsideChanges, upToSecond(wait)).
			WithHint("commit from outside the sandbox, which is not limited: coppice snapshot create %s", rec.Name)
	}
	return func() { b.Spent(m.now(), ClassInside, 1) }, nil
}

// MayTry charges the budget of a sandbox for a trial that is requested from inside it, or refuses the trial.
func (m *Budgets) MayTry(ctx context.Context, rec *meta.Sandbox) error {
	b, err := m.Of(ctx, rec.ID)
	if err != nil {
		return err
	}
	if !b.Take(m.now(), ClassTrials, 1) {
		return fault.New(fault.Unavailable, "too many trials from inside sandbox %s: %d; the next is allowed in %s", rec.Name,
			limit.InsideTrials, upToSecond(b.Wait(m.now(), ClassTrials))).
			WithHint("run the command in this sandbox, and rewind if it fails")
	}
	return nil
}

// upToSecond rounds up to seconds.
func upToSecond(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// Share makes a fork use the budget of its parent, until Forget: what the fork causes is charged to the parent. The
// fork must not have been used yet.
func (m *Budgets) Share(fork, parent timeline.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sandboxes[parent]
	if s == nil {
		s = &sandboxBudget{of: parent}
		m.sandboxes[parent] = s
	}
	m.sandboxes[fork] = s
}

// Forget drops the budget of a sandbox that was removed.
func (m *Budgets) Forget(id timeline.SandboxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sandboxes, id)
}

// spentBefore makes the budget of a sandbox from its newest records.
func (m *Budgets) spentBefore(ctx context.Context, id timeline.SandboxID) (*Budget, error) {
	now, of := m.now(), format.Sandbox(id)
	b := NewBudget(now)
	if _, err := m.ledger.Last(ctx, of); err != nil { // makes appended records readable
		return nil, err
	}
	filter := ledger.Filter{Since: now.Add(-limit.EvidenceRefill), Kinds: chargedKinds()}
	for r, err := range m.ledger.Read(ctx, of, filter) {
		if err != nil {
			return nil, err
		}
		if c, n, ok := charge(r.Observer, r.Body); ok {
			b.Spent(r.Time, c, n)
		}
		if p, ok := r.Body.(*format.Program); ok && p.List != "" {
			n, err := m.ledger.BlobSize(of, p.List)
			if err != nil {
				return nil, err
			}
			b.Spent(r.Time, ClassLists, n)
		}
	}
	return b, nil
}

// admitDrafts returns the drafts that Admit admits, and counts the others by kind.
func (b *Budget) admitDrafts(now time.Time, drafts []ledger.Draft) (kept []ledger.Draft, over []format.Lost) {
	for _, d := range drafts {
		if b.Admit(now, d.Observer, d.Body) {
			kept = append(kept, d)
			continue
		}
		over = addLost(over, lossOf(d.Body, BeyondBudget))
	}
	return kept, over
}

// addLost adds to a list of losses, which it may modify. It merges losses of the same kind and reason.
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

// lossOf returns the loss that counts a record that is not made, for a reason.
func lossOf(body format.Body, reason string) format.Lost {
	l := format.Lost{Count: 1, Of: string(body.Kind()), Reason: reason}
	switch b := body.(type) {
	case *format.Denial:
		l.Count = max(1, b.Count)
	case *format.Network:
		l.Count = max(1, b.Count)
	case *format.Lost: // is a count already
		l.Count, l.Of = b.Count, b.Of
	}
	return l
}
