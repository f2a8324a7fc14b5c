//go:build linux

package engine

import (
	"context"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/meta"
)

// adoptCommands takes up the commands that go on in a box, under the ids that they had: run
// is that of the supervised one.
func (e *Engine) adoptCommands(
	ctx context.Context, s *held, rec *meta.Sandbox, b Box, run string,
) (ids []string, err error) {
	all, err := b.Execs(ctx)
	if err != nil {
		return nil, err
	}
	now := e.Now()
	var tell []audit.Statement
	s.begun++
	for _, x := range all {
		if x.Exit != nil || !isExecID(x.ID) { // it is the inside that says what they are called
			continue
		}
		c := newCommand(rec.ID, x.ID, now, rec.Head)
		c.req = wire.ExecRequest{ID: x.ID, Cmd: x.Cmd, TTY: x.TTY}
		e.commands.replace(c)
		tell = append(tell, execRecord(ctx, e.cleaners, rec, c.req))
		ids = append(ids, x.ID)
		if x.ID == run && rec.Run != nil {
			again := *rec.Run
			again.Exec, again.Started, again.Ended, again.Exit = x.ID, now.UTC(), nil, nil
			rec.Run = &again
			if err := e.DB.UpdateSandbox(ctx, s.ID,
				func(r *meta.Sandbox) error { r.Run, r.Again, r.Starting = &again, false, false; return nil }); err != nil {
				return nil, err
			}
			c.run = again
			e.supervise(s, b, c)
			continue
		}
		e.keep(s, b, c)
	}
	return ids, e.Book.Record(ctx, rec, tell...)
}

// isExecID reports whether a text is what newExecID makes.
func isExecID(s string) bool {
	hex, ok := strings.CutPrefix(s, "x")
	return ok && len(hex) == 10 && strings.Trim(hex, "0123456789abcdef") == ""
}
