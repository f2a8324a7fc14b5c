//go:build linux

package audit

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// Do records an operation that is about to be done, and then calls do, which does it. If do returns an error, which
// Do returns unchanged, another record says that the operation did not happen. If it cannot be recorded, do is not
// called. If the daemon is killed meanwhile, Reconcile of the next one finds out what happened.
func (b *Book) Do(ctx context.Context, drafts []ledger.Draft, do func(context.Context) error) error {
	b.doing.Add(1)
	got, err := b.Append(ctx, drafts...)
	if err == nil {
		if err = do(ctx); err != nil { // after a panic, doing stays raised, so that the next daemon compares
			b.undo(ctx, drafts, got, err)
		}
	}
	b.doing.Add(-1)
	return err
}

// undo records that the operations of records did not happen.
func (b *Book) undo(ctx context.Context, drafts []ledger.Draft, got []format.Record, cause error) {
	c := b.Cleaners.Formats()
	if rec, err := b.config.Store.Sandbox(ctx, string(drafts[0].Sandbox)); err == nil {
		c = b.Cleaners.For(ctx, &rec)
	}
	reason := c.RecordText(cause.Error())
	out := slices.Clone(drafts)
	for i := range out {
		out[i].Observer, out[i].Body = format.ByDaemon, &format.Undone{Seq: got[i].Seq, Reason: reason}
	}
	b.noteDrafts(ctx, out...)
}

// Pending is a set of records that are being written concurrently with other work.
type Pending struct {
	book   *Book
	drafts []ledger.Draft
	got    []format.Record
	err    error
	done   chan struct{} // closed when got and err are final
}

// Begin starts to write records. The caller calls Wait before it acknowledges what the records say.
func (b *Book) Begin(ctx context.Context, rec *meta.Sandbox, all ...Statement) *Pending {
	p := &Pending{book: b, drafts: b.Drafts(ctx, rec, all...), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.got, p.err = b.Append(ctx, p.drafts...)
	}()
	return p
}

// Wait waits until the records are on the disk, or cannot be written. It may be called more than once.
func (p *Pending) Wait() error {
	<-p.done
	return p.err
}

// Find returns the sequence number of the first record for which like is true. ok reports whether there is such a
// record; seq is 0 if it could not be written. Find waits as Wait does.
func (p *Pending) Find(like func(format.Body) bool) (seq int64, ok bool) {
	i := slices.IndexFunc(p.drafts, func(d ledger.Draft) bool { return like(d.Body) })
	if i < 0 {
		return 0, false
	}
	if p.Wait() != nil {
		return 0, true
	}
	return p.got[i].Seq, true
}

// Undo records that what the selected records say did not happen.
func (p *Pending) Undo(ctx context.Context, cause error, which func(format.Body) bool) {
	if p.Wait() != nil {
		return
	}
	for i, d := range p.drafts {
		if which(d.Body) {
			p.book.undo(ctx, p.drafts[i:i+1], p.got[i:i+1], cause)
		}
	}
}
