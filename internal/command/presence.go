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

// presence is the attachment of a client that started a command at a terminal. The attach is recorded with
// the start of the command, and undone with it if the command does not start; the detach is recorded once,
// when the command ends or the client disconnects. The zero presence records nothing.
type presence struct {
	first audit.Statement // the attach
	tell  func()          // records the detach; nil: no terminal

	mu       sync.Mutex
	here     bool // the command runs
	gone     bool // the client has disconnected, or the command has ended
	recorded bool // the detach is recorded
}

// presence returns the presence of a client that starts a command.
func (r *Runner) presence(ctx context.Context, id timeline.SandboxID, req wire.ExecRequest) *presence {
	if !req.TTY {
		return &presence{}
	}
	return &presence{first: r.sessionRecord(ctx, "attached", req), tell: func() { r.left(ctx, id, req) }}
}

// coming returns the records to write with the start of the command.
func (p *presence) coming() []audit.Statement {
	if p.tell == nil {
		return nil
	}
	return []audit.Statement{p.first}
}

// came notes that the command runs, and that the attach is recorded.
func (p *presence) came() { p.change(func() { p.here = true }) }

// leaves notes that the client has disconnected or the command has ended. It may be called more than once.
func (p *presence) leaves() { p.change(func() { p.gone = true }) }

func (p *presence) change(how func()) {
	p.mu.Lock()
	how()
	left := p.here && p.gone && !p.recorded && p.tell != nil
	p.recorded = p.recorded || left
	p.mu.Unlock()
	if left {
		p.tell()
	}
}

// attended records that a client attached to a command; left records that it detached. Clients that only
// read are not recorded.
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

// left records that a client detached from a command.
func (r *Runner) left(ctx context.Context, id timeline.SandboxID, req wire.ExecRequest) {
	ctx = context.WithoutCancel(ctx)
	if rec, err := r.c.Records.Sandbox(ctx, string(id)); err == nil { // otherwise it was removed
		r.c.Book.Note(ctx, &rec, r.sessionRecord(ctx, "left", req))
	}
}

// sessionRecord returns the record of an attach ("attached") or a detach ("left").
func (r *Runner) sessionRecord(ctx context.Context, event string, req wire.ExecRequest) audit.Statement {
	by := r.c.Cleaners.Formats().RecordText(r.c.Caller(ctx))
	return audit.Statement{
		By: format.ByDaemon, Body: &format.Session{By: by, Event: event, Exec: cmp.Or(req.Attach, req.ID)},
	}
}
