package ledger

import (
	"context"
	"iter"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Read is Reader.Read, including everything that was appended before the call. On a full disk, some of that may be
// missing.
func (l *Ledger) Read(ctx context.Context, id format.Sandbox, f Filter) iter.Seq2[*format.Record, error] {
	return l.settled(func() iter.Seq2[*format.Record, error] { return l.Reader.Read(ctx, id, f) })
}

// After is Reader.After, including everything that was appended before the call, as for Read.
func (l *Ledger) After(ctx context.Context, leaf int64) iter.Seq2[*format.Record, error] {
	return l.settled(func() iter.Seq2[*format.Record, error] { return l.Reader.After(ctx, leaf) })
}

// Newest is Reader.Newest, including everything that was appended before the call, as for Read.
func (l *Ledger) Newest(ctx context.Context, id format.Sandbox, f Filter, n int) ([]*format.Record, error) {
	if err := l.settleFirst(); err != nil {
		return nil, err
	}
	return l.Reader.Newest(ctx, id, f, n)
}

// settleFirst places appended records before a read. A closed ledger has placed what it could.
func (l *Ledger) settleFirst() error {
	got, _ := l.askUntil(nil, ask{do: l.settle})
	if fault.Is(got.err, fault.Unavailable) {
		return nil
	}
	return fault.Wrap(got.err, "read the ledger in %s", l.path)
}

// settled returns the sequence of read, after settleFirst.
func (l *Ledger) settled(read func() iter.Seq2[*format.Record, error]) iter.Seq2[*format.Record, error] {
	return func(yield func(*format.Record, error) bool) {
		if err := l.settleFirst(); err != nil {
			yield(nil, err)
			return
		}
		read()(yield)
	}
}
