//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// maxBetween is how many records from while a command ran are shown with it.
const maxBetween = 1000

// spell is what is found in the records of a sandbox of the time in which a command ran.
type spell struct {
	exec    string // the command; "" is none
	begun   bool
	exit    *format.Exit // nil: not found yet
	between []*format.Record
	more    bool
}

// hear takes the next record.
func (s *spell) hear(r *format.Record) {
	if s.exec == "" {
		return
	}
	switch b := r.Body.(type) {
	case *format.Exec:
		s.begun = s.begun || b.Exec == s.exec
	case *format.Exit:
		if b.Exec == s.exec {
			s.exit = b
		}
	case *format.Network, *format.Denial:
		switch {
		case !s.begun || s.exit != nil:
		case len(s.between) == maxBetween:
			s.more = true
		default:
			s.between = append(s.between, r)
		}
	}
}

// outputOf reads what was kept of a command's output.
func (e *Engine) outputOf(id format.Sandbox, exit *format.Exit) (out []wire.LedgerOutput) {
	for _, o := range exit.Output {
		w := wire.LedgerOutput{Stream: o.Stream, Blob: o.Blob, Dropped: o.Dropped}
		if o.Blob != "" {
			var err error
			if w.Data, err = e.Ledger.ReadBlob(id, o.Blob); err != nil {
				w.Lost = err.Error()
			}
		}
		out = append(out, w)
	}
	return out
}

// LedgerBlob gives a capture that a record of a sandbox names.
func (e *Engine) LedgerBlob(ctx context.Context, name, blob string) ([]byte, error) {
	id, last, err := e.ledgerOf(ctx, name)
	if err != nil {
		return nil, err
	}
	if last == 0 {
		return nil, fault.New(fault.NotFound, "there are no records of %s", name)
	}
	return e.Ledger.ReadBlob(id, blob)
}
