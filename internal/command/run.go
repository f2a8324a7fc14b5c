//go:build linux

package command

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// restartAfter is the delay before a command that exited is started again. It doubles each time the command exits
	// early, up to restartMax.
	restartAfter = 100 * time.Millisecond
	restartMax   = 30 * time.Second
	// steady is how long a command must have run so that its exit is not early.
	steady = 10 * time.Second
)

// Run starts the supervised command of a sandbox, with automatic history. For a command that cannot be started it
// returns a Run with an Exit of 126 or 127. A sandbox has at most one supervised command; a second one is a Conflict.
func (r *Runner) Run(ctx context.Context, name string, req wire.RunRequest) (wire.Run, error) {
	o, err := r.newRun(ctx, name, req)
	if err != nil {
		return wire.Run{}, err
	}
	return o.run, o.session.Close()
}

// newRun starts the supervised command of a sandbox that has none. It may have exited when newRun
// returns. The caller closes the session, whose first frame has been read.
func (r *Runner) newRun(ctx context.Context, name string, req wire.RunRequest) (*opened, error) {
	if err := checkRun(&req, name); err != nil {
		return nil, err
	}
	s, rec, err := r.acquire(ctx, name, "starting a command")
	if err != nil {
		return nil, err
	}
	defer s.unlock()
	if c := req.Capture; c.MemoryEveryMS != 0 || c.MemoryOnMark {
		if err := r.c.Memory.MayKeep(&rec); err != nil {
			return nil, err
		}
	}
	if s.run != nil {
		return nil, fault.New(fault.Conflict, "sandbox %s already runs a command: %s", rec.Name, commandLine(s.run.run.Cmd)).
			WithHint("attach to it: coppice attach %s; or run another one beside it: coppice exec %s -- CMD", rec.Name, rec.Name)
	}
	return r.startRun(ctx, s, &rec, wire.Run{RunRequest: req})
}

func checkRun(req *wire.RunRequest, name string) error {
	if len(req.Cmd) == 0 {
		return fault.New(fault.Invalid, "no command was given").
			WithHint("give it after --, for example: coppice run --in %s -- bash", name)
	}
	switch req.Restart {
	case "":
		req.Restart = wire.RestartOnRewind
	case wire.RestartNo, wire.RestartOnRewind, wire.RestartAlways:
	default:
		return fault.New(fault.Invalid, "unknown restart policy %q", req.Restart).WithHint("use no, on-rewind or always")
	}
	if req.Remove && req.Restart == wire.RestartAlways {
		return fault.New(fault.Invalid, "cannot combine --rm and --restart always").
			WithHint("omit one of them")
	}
	_, err := newPace(req.Capture)
	return err
}

// startRun starts a command as the sandbox's supervised one. Its id is recorded before it is started, so that no
// later daemon ignores it, or starts it twice. The caller closes the session.
func (r *Runner) startRun(ctx context.Context, s *held, rec *meta.Sandbox, run wire.Run) (o *opened, err error) {
	ctx = context.WithoutCancel(ctx) // a command that was started must be recorded
	before := rec.Run
	defer func() {
		if err == nil {
			return
		}
		rec.Run, rec.Starting = before, false
		if uerr := r.noteRun(ctx, rec.ID, before, false); uerr != nil {
			r.c.Log.Error("could not remove the record of a command that did not start", "sandbox", rec.Name, "err", uerr)
		}
	}()
	if !rec.Starting {
		run.Starts++
		if run.Exec, err = r.newID(); err != nil {
			return nil, err
		}
	}
	run.Started, run.Ended, run.Exit = r.c.Now().UTC().Truncate(time.Microsecond), nil, nil
	rec.Run = &run // the box is started with it in mind
	if err = r.noteRun(ctx, rec.ID, &run, true); err != nil {
		return nil, err
	}
	o, err = r.openFollowed(ctx, s, rec, wire.ExecRequest{
		ID: run.Exec, Cmd: run.Cmd, Env: run.Env, Dir: run.Dir, TTY: run.TTY, Stdin: run.Stdin, Size: run.Size,
		Capture: run.Capture,
	})
	if err != nil {
		return nil, err
	}
	o.req = wire.ExecRequest{Cmd: run.Cmd}
	if o.failed != nil {
		run.Exit, run.Ended = &o.failed.Exit, &run.Started
		err = r.neverRan(ctx, rec, o)
	}
	if err == nil {
		o.run = run
		err = r.c.Records.UpdateSandbox(ctx, rec.ID, func(m *meta.Sandbox) error {
			m.Run, m.Again, m.Starting = &run, false, false
			return nil
		})
	}
	if err != nil {
		o.session.Close()
		r.leave(o) // the command may run; its exit is recorded in any case
		return nil, err
	}
	rec.Again, rec.Starting = false, false
	r.c.Feed.Emit(events.Started(rec, &run, Message(ctx, r.c.Cleaners, rec, o.req)))
	if o.failed == nil {
		r.supervise(s, o.box, o.command)
	}
	return o, nil
}

// noteRun records the supervised command of a sandbox, and whether it is being started.
func (r *Runner) noteRun(ctx context.Context, id timeline.SandboxID, run *wire.Run, starting bool) error {
	return r.c.Records.UpdateSandbox(ctx, id, func(m *meta.Sandbox) error {
		m.Run, m.Starting = run, starting
		return nil
	})
}

// neverRan records the exit of a supervised command that cannot be run.
func (r *Runner) neverRan(ctx context.Context, rec *meta.Sandbox, o *opened) error {
	x := withHead(o.failed.Exit, rec.Head, Taken{})
	if err := r.c.Book.Record(ctx, rec, r.exitRecords(ctx, rec, o.command, Ended{}, x, Taken{})...); err != nil {
		return err
	}
	r.c.Register.settle(o.command)
	o.exit = o.failed.Exit
	close(o.done)
	return nil
}

// supervise makes a running command the supervised one of the sandbox: it is followed until it exits, and the changes
// of the sandbox's processes are captured from now on.
func (r *Runner) supervise(s *held, b Box, c *command) {
	if before := s.run; before != nil {
		before.next = c
		close(before.done)
	}
	s.run = c
	p := s.at
	r.await(p, b, c, func(ctx context.Context, end Ended, err error) bool { return r.runEnded(ctx, p, c, end, err) })
	every := time.Duration(c.run.Capture.MemoryEveryMS) * time.Millisecond
	if every >= images.LeastEvery {
		r.c.Memory.KeepEvery(p.id, b, every)
	}
	r.captureDuring(s, b, c)
}

// runEnded processes the exit of a supervised command: a snapshot, another start, the removal of the sandbox. It
// reports whether the exit is recorded, or no longer matters.
func (r *Runner) runEnded(ctx context.Context, p *place, c *command, end Ended, err error) bool {
	recorded := false
	for delay := restartDelay(c.run, r.c.Now()); ; {
		s, lerr := r.lock(ctx, p, "after the exit of its command")
		if lerr != nil {
			return false // the next daemon finds it
		}
		rec, dberr := r.c.Records.Sandbox(ctx, string(p.id))
		if s.run != c { // the command was started again meanwhile
			if dberr == nil {
				r.recordEnd(ctx, &rec, c, end, exitOf(c, end, err))
			}
			s.unlock()
			return true
		}
		if dberr != nil {
			endRun(s, c, wire.Exit{Code: end.Code, Signal: end.Signal, Message: "the sandbox was removed while the command ran"})
			s.unlock()
			return true
		}
		if !recorded {
			recorded = true
			r.c.Feed.Emit(events.Limits(&rec, c.id, Message(ctx, r.c.Cleaners, &rec, c.req), end.Exit)...)
		}
		if err == nil {
			rec.Starting = false // the command was started, though no daemon had time to record that
		}
		again, atOnce := r.startsAgain(&rec, c, end, err)
		if again && !atOnce && delay > 0 { // without the lock, so that other operations can run
			s.unlock()
			select {
			case <-ctx.Done():
				return false
			case <-time.After(delay):
			}
			delay = 0
			continue
		}
		if again && r.again(ctx, s, &rec, end, err) {
			s.unlock()
			return true
		}
		recorded := r.concludeRun(ctx, s, &rec, c, end, err)
		s.unlock()
		if !recorded {
			return false
		}
		break
	}
	if c.run.Remove {
		if err := r.c.Sandboxes.Remove(ctx, p.id); err != nil {
			r.c.Log.Error("could not remove a sandbox after its command", "sandbox", p.id, "err", err)
		}
	}
	return true
}

// startsAgain reports whether a supervised command that has exited will be started again. atOnce reports that this
// was decided before it exited.
func (r *Runner) startsAgain(rec *meta.Sandbox, c *command, end Ended, err error) (again, atOnce bool) {
	// A command that exited before the rewind stopped it is not restarted for the rewind.
	atOnce = err != nil && (rec.Again || rec.Starting) || end.Stopped && rec.Again
	// A command that was stopped because of its own actions is not restarted automatically.
	if c.halted || r.c.Sandboxes.Halted(rec, c.run.Started) {
		return false, false
	}
	return atOnce || c.run.Restart == wire.RestartAlways, atOnce
}

// restartDelay returns how long to wait before a command is started again.
func restartDelay(run wire.Run, now time.Time) time.Duration {
	if now.Sub(run.Started) >= steady {
		return restartAfter
	}
	return min(restartAfter<<min(run.Starts-1, 10), restartMax)
}

// exitOf returns the exit of a supervised command. It is unknown if the keeper exited.
func exitOf(c *command, end Ended, err error) wire.Exit {
	switch {
	case err == nil:
		return end.Exit
	case c.halted:
		return killed(stoppedMeanwhile).Exit
	}
	return killed("the sandbox's monitor exited while the command was running").Exit
}

// again captures, and starts the supervised command again. If that is impossible, it logs the reason and returns
// false.
func (r *Runner) again(ctx context.Context, s *held, rec *meta.Sandbox, end Ended, ended error) bool {
	c := s.run
	r.c.Journals.Finish(ctx, rec.ID)
	var err error
	if rec.Starting { // the command starts only now, under this id
		n := Note{Cause: timeline.CauseAuto, Message: Message(ctx, r.c.Cleaners, rec, c.req)}
		_, err = s.Capture(ctx, rec, n)
	} else {
		o := &outcome{command: c, end: end, exit: exitOf(c, end, ended)}
		_, err = r.conclude(ctx, s, rec, o, timeline.CauseAuto)
	}
	var o *opened
	if err == nil {
		o, err = r.startRun(ctx, s, rec, c.run)
	}
	if err != nil {
		r.c.Log.Error("could not start the command again", "sandbox", rec.Name, "err", err)
		return false
	}
	o.session.Close()
	return s.run != c
}

// concludeRun captures what a supervised command left, and records its exit. If that is impossible, it logs the
// reason and returns false.
func (r *Runner) concludeRun(ctx context.Context, s *held, rec *meta.Sandbox, c *command, end Ended, err error) bool {
	r.c.Journals.Finish(ctx, rec.ID)
	o := &outcome{command: c, end: end, exit: exitOf(c, end, err)}
	captured, cerr := r.conclude(ctx, s, rec, o, timeline.CauseExec)
	switch {
	case cerr == nil:
	case captured:
		r.c.Log.Error("took the snapshot after the command, but a later step failed", "sandbox", rec.Name, "err", cerr)
	default:
		o.exit.Message = "could not capture the changes of the command: " + cerr.Error()
		o.exit = withHead(o.exit, rec.Head, Taken{ID: rec.Head})
		r.c.Log.Error("could not capture the changes of the command", "sandbox", rec.Name, "err", cerr)
	}
	x := o.exit
	if cerr != nil {
		r.recordEnd(ctx, rec, c, end, x)
	}
	r.c.Register.settle(c)
	x = r.c.Register.whole(c, x)
	now := r.c.Now().UTC().Truncate(time.Microsecond)
	uerr := r.c.Records.UpdateSandbox(ctx, rec.ID, func(m *meta.Sandbox) error {
		if m.Run != nil && m.Run.Exec == c.id {
			m.Again, m.Starting = false, false
			run := *m.Run
			run.Ended, run.Exit = &now, &x
			m.Run = &run
		}
		return nil
	})
	if uerr != nil {
		r.c.Log.Error("could not record the exit of the command", "sandbox", rec.Name, "err", uerr)
	}
	r.c.Feed.Emit(events.Exited(rec, c.id, Message(ctx, r.c.Cleaners, rec, c.req), x))
	endRun(s, c, x)
	r.captureOver(s)
	return uerr == nil
}

// endRun reports the exit x of the supervised command to the clients that are attached to it.
func endRun(s *held, c *command, x wire.Exit) {
	c.exit = x
	if s.run == c {
		s.run = nil
	}
	close(c.done)
}
