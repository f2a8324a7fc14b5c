//go:build linux

package command

import (
	"cmp"
	"context"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// presence is a client that began a command at a terminal, and sits there until the command ends or the
// client goes away. Its arrival is recorded with the beginning of the command, and its leaving once; if the
// command did not begin, the record of the arrival is undone with that of the beginning. The zero presence
// has no client, and records nothing.
type presence struct {
	first audit.Statement // the arrival
	tell  func()          // records that the client left; nil: there is no client

	mu   sync.Mutex
	here bool // the command runs
	gone bool // the client went
	told bool // tell was called
}

// presence returns the presence of a client that begins a command.
func (r *Runner) presence(ctx context.Context, id timeline.SandboxID, req wire.ExecRequest) *presence {
	if !req.TTY {
		return &presence{}
	}
	return &presence{first: r.sessionRecord(ctx, "attached", req), tell: func() { r.left(ctx, id, req) }}
}

// coming is what is recorded with the beginning of the command.
func (p *presence) coming() []audit.Statement {
	if p.tell == nil {
		return nil
	}
	return []audit.Statement{p.first}
}

// came notes that the command runs, and that the arrival of the client is recorded.
func (p *presence) came() { p.change(func() { p.here = true }) }

// leaves notes that the client went away, or that the command ended. It may be called again.
func (p *presence) leaves() { p.change(func() { p.gone = true }) }

func (p *presence) change(how func()) {
	p.mu.Lock()
	how()
	left := p.here && p.gone && !p.told && p.tell != nil
	p.told = p.told || left
	p.mu.Unlock()
	if left {
		p.tell()
	}
}

// attended records that a client has attached to a command; left records that the client has left. Of a
// client that only reads, neither is recorded.
func (r *Runner) attended(
	ctx context.Context, id timeline.SandboxID, req wire.ExecRequest,
) (left func(), err error) {
	if req.ReadOnly {
		return func() {}, nil
	}
	rec, err := r.c.Records.Sandbox(context.WithoutCancel(ctx), string(id))
	if err == nil {
		err = r.c.Book.Record(ctx, &rec, r.sessionRecord(ctx, "attached", req))
	}
	return func() { r.left(ctx, id, req) }, err
}

// left records that a client left a command.
func (r *Runner) left(ctx context.Context, id timeline.SandboxID, req wire.ExecRequest) {
	ctx = context.WithoutCancel(ctx)
	if rec, err := r.c.Records.Sandbox(ctx, string(id)); err == nil { // else it was removed
		r.c.Book.Note(ctx, &rec, r.sessionRecord(ctx, "left", req))
	}
}

// sessionRecord tells that a client came to a command, or left it.
func (r *Runner) sessionRecord(ctx context.Context, event string, req wire.ExecRequest) audit.Statement {
	by := r.c.Cleaners.Formats().RecordText(r.c.Caller(ctx))
	return audit.Statement{
		By: format.ByDaemon, Body: &format.Session{By: by, Event: event, Exec: cmp.Or(req.Attach, req.ID)},
	}
}
