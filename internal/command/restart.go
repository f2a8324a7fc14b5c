//go:build linux

package command

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// Operations of the engine on the supervised command of a sandbox whose lock it holds.

// Supervised returns the supervised command of a sandbox; nil if it has none. halted reports whether it
// must not be started again.
func (r *Runner) Supervised(h *sandbox.Held) (run *wire.Run, halted bool) {
	if o := r.of(h); o != nil && o.run != nil {
		return &o.run.run, o.run.halted
	}
	return nil, false
}

// Halt prevents the supervised command of a sandbox, if it has one, from being started again.
func (r *Runner) Halt(h *sandbox.Held) {
	if o := r.of(h); o != nil && o.run != nil {
		o.run.halted = true
	}
}

// WillRestart records, before the supervised command is stopped for a rewind, that it will be started again, if its
// restart policy says so. If this daemon is killed in between, a later one starts it. It also records that a running
// command was started, which a daemon may not have had time to record.
func (r *Runner) WillRestart(ctx context.Context, h *sandbox.Held, rec *meta.Sandbox) error {
	if run, halted := r.Supervised(h); run == nil || halted || run.Restart == wire.RestartNo {
		return nil
	}
	rec.Starting = false
	return r.c.Records.UpdateSandbox(ctx, rec.ID, func(m *meta.Sandbox) error {
		m.Again, m.Starting = true, false
		return nil
	})
}

// Restart starts the supervised command again after a rewind, if its restart policy says so. It reports
// whether the command runs.
func (r *Runner) Restart(ctx context.Context, h Held, rec *meta.Sandbox) (bool, error) {
	s := r.with(h)
	c := s.run
	if c == nil || c.halted || c.run.Restart == wire.RestartNo {
		return false, nil
	}
	exit, err := r.restart(ctx, &s, rec, c.run)
	if err != nil {
		return false,
			fault.Wrap(err, "sandbox %s is at snapshot %s, but its command was not started again", rec.Name, rec.Head)
	}
	if exit != nil { // it cannot be run in that snapshot
		endRun(&s, c, *exit)
	}
	return exit == nil, nil
}

// StartAgain starts the supervised command of a sandbox, which must not be running. It returns an exit
// if the command cannot be run any more.
func (r *Runner) StartAgain(ctx context.Context, h Held, rec *meta.Sandbox) (*wire.Exit, error) {
	s := r.with(h)
	exit, err := r.restart(ctx, &s, rec, *rec.Run)
	return exit, fault.Wrap(err, "start the command of sandbox %s again", rec.Name)
}

// restart starts a supervised command that ran before. It returns an exit if the command cannot be run
// any more.
func (r *Runner) restart(ctx context.Context, s *held, rec *meta.Sandbox, run wire.Run) (*wire.Exit, error) {
	o, err := r.startRun(ctx, s, rec, run)
	if err != nil {
		return nil, err
	}
	o.session.Close()
	return o.run.Exit, nil
}
