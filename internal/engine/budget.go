//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
)

// What a sandbox causes without its owner has a budget (audit.Budget). Records beyond it
// are counted in a lost record, changes requested from inside are refused, and automatic
// snapshots wait.

// mayChange refuses a request from inside a sandbox that exceeds its budget; changed charges
// the budget. Requests from outside are always allowed.
func (e *Engine) mayChange(ctx context.Context, rec *meta.Sandbox) (changed func(), err error) {
	if !Inside(ctx) {
		return func() {}, nil
	}
	b, err := e.budgets.Of(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	if wait := b.Wait(e.Now(), audit.ClassInside); wait > 0 {
		wait = (wait + time.Second - 1).Truncate(time.Second)
		return nil, fault.New(fault.Unavailable,
			"sandbox %s has asked for %d snapshots, rewinds and tags from inside; the next may be asked for in %s", rec.Name,
			limit.InsideChanges, wait).
			WithHint("from outside the sandbox, the number of commits is not limited: coppice commit %s", rec.Name)
	}
	return func() { b.Spent(e.Now(), audit.ClassInside, 1) }, nil
}
