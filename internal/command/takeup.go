//go:build linux

package command

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// TakeUp takes over the commands of a sandbox that an earlier daemon left. It follows those that run, and records the
// exits of those whose box has exited meanwhile. b is the box if it still lives, and all lists the commands that it
// holds.
func (r *Runner) TakeUp(ctx context.Context, h Held, rec *meta.Sandbox, b Box, all []wire.ExecInfo) {
	s := r.with(h)
	r.takeUpRun(&s, rec)
	for _, x := range all {
		if x.Kept && (rec.Run == nil || x.ID != rec.Run.Exec) {
			c := r.c.Register.foundAgain(rec.ID, x.ID, x.Started)
			c.req = wire.ExecRequest{Cmd: x.Cmd, Capture: x.Capture}
			r.keep(&s, b, c)
		}
	}
	r.takeUpOthers(ctx, &s, rec, all)
}

// takeUpRun takes over a supervised command that an earlier daemon left.
func (r *Runner) takeUpRun(s *held, rec *meta.Sandbox) {
	if rec.Run == nil || rec.Run.Ended != nil || s.run != nil {
		return
	}
	c := r.c.Register.foundAgain(rec.ID, rec.Run.Exec, rec.Run.Started)
	c.run, c.req = *rec.Run, wire.ExecRequest{Cmd: rec.Run.Cmd}
	if b := s.Box(); b != nil {
		r.supervise(s, b, c)
		return
	}
	// Its box exited while no daemon ran.
	s.run = c
	p := s.at
	r.c.Go(func(ctx context.Context) {
		r.runEnded(ctx, p, c, Ended{}, fault.New(fault.Unavailable, "the monitor has exited"))
	})
}

// takeUpOthers follows the open commands that an earlier daemon started, except the supervised and the kept ones,
// which are followed separately. all lists those that the box holds.
func (r *Runner) takeUpOthers(ctx context.Context, s *held, rec *meta.Sandbox, all []wire.ExecInfo) {
	p := s.at
	for _, c := range r.c.Register.in(rec.ID) {
		supervised := rec.Run != nil && rec.Run.Ended == nil && rec.Run.Exec == c.id
		if !c.found || supervised || s.kept[c.id] != nil {
			continue
		}
		if b := s.Box(); b != nil {
			c.req = wire.ExecRequest{Cmd: []string{"command", c.id}}
			if i := slices.IndexFunc(all, func(x wire.ExecInfo) bool { return x.ID == c.id }); i >= 0 {
				c.req.Capture = all[i].Capture
				r.captureDuring(s, b, c)
			}
			r.c.Go(func(ctx context.Context) { r.seeThrough(ctx, p, b, c) })
			continue
		}
		r.c.Journals.Finish(ctx, rec.ID) // denials while no daemon ran count for the command
		end := killed("the sandbox's processes exited while no daemon was running")
		r.recordEnd(ctx, rec, c, end, end.Exit)
	}
}

// Adopt takes over the commands that resume in a box from a memory image, under their previous ids, and returns the
// ids. run is the id of the supervised one.
func (r *Runner) Adopt(ctx context.Context, h Held, rec *meta.Sandbox, b Box, run string) (ids []string, err error) {
	all, err := b.Execs(ctx)
	if err != nil {
		return nil, err
	}
	s := r.with(h)
	now := r.c.Now()
	var tell []audit.Statement
	s.begun++
	for _, x := range all {
		if x.Exit != nil || !isID(x.ID) { // ids that the inside chose are not trusted
			continue
		}
		c := newCommand(rec.ID, x.ID, now, rec.Head)
		c.req = wire.ExecRequest{ID: x.ID, Cmd: x.Cmd, TTY: x.TTY, Capture: x.Capture}
		r.c.Register.replace(c)
		tell = append(tell, r.execRecord(ctx, rec, c.req))
		ids = append(ids, x.ID)
		if x.ID != run || rec.Run == nil {
			r.keep(&s, b, c)
			continue
		}
		again := *rec.Run
		again.Exec, again.Started, again.Ended, again.Exit = x.ID, now.UTC(), nil, nil
		rec.Run = &again
		if err := r.c.Records.UpdateSandbox(ctx, rec.ID, func(m *meta.Sandbox) error {
			m.Run, m.Again, m.Starting = &again, false, false
			return nil
		}); err != nil {
			return nil, err
		}
		c.run, c.req = again, wire.ExecRequest{Cmd: again.Cmd}
		r.supervise(&s, b, c)
	}
	return ids, r.c.Book.Record(ctx, rec, tell...)
}
