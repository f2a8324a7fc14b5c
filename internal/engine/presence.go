//go:build linux

package engine

import (
	"context"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
)

// presence is who began a command at a terminal, and sits there until it ends or he goes
// away. That he came is recorded with the beginning of the command, and once that he left; if
// it did not begin, the former is taken back with it. That of any other command is nobody.
type presence struct {
	first audit.Statement // that he came
	tell  func()          // records that he left; nil: nobody is there

	mu   sync.Mutex
	here bool // the command runs
	gone bool // he went
	told bool // that he left
}

func (e *Engine) presence(ctx context.Context, s *entry, req wire.ExecRequest) *presence {
	if !req.TTY || req.Attach != "" {
		return &presence{}
	}
	return &presence{first: e.sessionRecord(ctx, "attached", req), tell: func() { e.left(ctx, s, req) }}
}

// coming is what is recorded with the beginning of the command.
func (p *presence) coming() []audit.Statement {
	if p.tell == nil {
		return nil
	}
	return []audit.Statement{p.first}
}

// came: the command runs, and that he came is recorded.
func (p *presence) came() { p.change(func() { p.here = true }) }

// leaves: he went away, or the command ended. It may be called again.
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
