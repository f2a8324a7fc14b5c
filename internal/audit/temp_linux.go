//go:build linux

package audit

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
)

// Undertake is Do in two parts.
func (b *Book) Undertake(ctx context.Context, drafts []ledger.Draft) (done func(error), err error) {
	b.doing.Add(1)
	got, err := b.Append(ctx, drafts...)
	if err != nil {
		b.doing.Add(-1)
		return func(error) {}, err
	}
	return func(cause error) {
		if cause != nil {
			b.undo(ctx, drafts, got, cause)
		}
		b.doing.Add(-1)
	}, nil
}

// Owe is Free in two parts.
func (b *Book) Owe(ctx context.Context, r Removal) (pay func(error) error, err error) {
	if !r.Removed && len(r.Snapshots) == 0 {
		return func(cause error) error { return cause }, nil
	}
	intent, err := b.Store.BeginIntent(ctx, intentTell, r)
	if err != nil {
		return nil, err
	}
	return func(cause error) error {
		ctx := context.WithoutCancel(ctx)
		if cause == nil {
			_, cause = b.Append(ctx, r.drafts()...)
			if cause != nil {
				return fault.Wrap(cause, "it is done, and will be in the ledger when there is room again")
			}
		}
		if err := b.Store.EndIntent(ctx, intent); err != nil {
			b.Logger.Warn("what was recorded may be recorded again", "sandbox", r.Name, "err", err)
		}
		return cause
	}, nil
}
