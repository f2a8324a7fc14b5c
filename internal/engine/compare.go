//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
)

// LedgerSummary gives what the records of a sandbox tell of it as a whole.
func (e *Engine) LedgerSummary(ctx context.Context, name string) (res wire.LedgerSummary, err error) {
	id, last, err := e.ledgerOf(ctx, name)
	if err == nil && last == 0 {
		err = fault.New(fault.NotFound, "there are no records of %s", name)
	}
	if err != nil {
		return res, err
	}
	var one audit.Summary
	for r, err := range e.Ledger.Read(ctx, id, ledger.Filter{}) {
		if err != nil {
			return res, err
		}
		one.Add(r)
	}
	return one.Result(), nil
}
