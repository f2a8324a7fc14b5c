//go:build linux

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// runGrace is what a supervised command has between SIGTERM and SIGKILL when
	// the sandbox is rewound under it.
	runGrace = 2 * time.Second
	// restartAfter is waited before a command that ended by itself is started
	// again; twice as long each time that it ends at once, up to restartMax.
	restartAfter = 100 * time.Millisecond
	restartMax   = 30 * time.Second
	// steady is how long a command must have run to count as started well.
	steady = 10 * time.Second
)

// Run starts the supervised command of a sandbox, under automatic history. A
// command that cannot be started gives a Run with an Exit of 126 or 127. A
// sandbox has one at a time; else it is a Conflict.
func (e *Engine) Run(ctx context.Context, name string, req wire.RunRequest) (wire.Run, error) {
	_, _, run, session, err := e.newRun(ctx, name, req)
	if err != nil {
		return run, err
	}
	return run, session.Close()
}

// newRun starts the supervised command of a sandbox that has none. It may have ended when this
// returns; where it has begun, c is it all the same. The caller closes the session, in which
// the command's first frame was read.
func (e *Engine) newRun(ctx context.Context, name string, req wire.RunRequest) (
	sbx *entry, c *command, run wire.Run, session io.ReadWriteCloser, err error,
) {
	if err := checkRun(&req, name); err != nil {
		return nil, nil, wire.Run{}, nil, err
	}
	s, rec, err := e.acquire(ctx, name, "starting a command")
	if err != nil {
		return nil, nil, wire.Run{}, nil, err
	}
	defer s.unlock(e)
	if c := req.Capture; c.MemoryEveryMS != 0 || c.MemoryOnMark {
		if err := e.Images.MayKeep(&rec); err != nil {
			return nil, nil, wire.Run{}, nil, err
		}
	}
	if s.run != nil {
		return nil, nil, wire.Run{}, nil,
			fault.New(fault.Conflict, "sandbox %s runs a command already: %s", rec.Name, commandLine(s.run.run.Cmd)).
				WithHint("see it with: coppice attach %s; run another beside it with: coppice exec %s -- CMD", rec.Name, rec.Name)
	}
	run, session, err = e.startRun(ctx, s, &rec, wire.Run{RunRequest: req})
	return s.entry, s.run, run, session, err
}

func checkRun(req *wire.RunRequest, name string) error {
	if len(req.Cmd) == 0 {
		return fault.New(fault.Invalid, "no command was given").
			WithHint("give it after --, as in: coppice run --in %s -- bash", name)
	}
	switch req.Restart {
	case "":
		req.Restart = wire.RestartOnRewind
	case wire.RestartNo, wire.RestartOnRewind, wire.RestartAlways:
	default:
		return fault.New(fault.Invalid, "there is no restart policy %q", req.Restart).WithHint("use no, on-rewind or always")
	}
	if req.Remove && req.Restart == wire.RestartAlways {
		return fault.New(fault.Invalid, "a sandbox that is removed after its command cannot start it again").
			WithHint("leave --rm or --restart always out")
	}
	_, err := newPace(req.Capture)
	return err
}

// startRun starts a command as the sandbox's supervised one. It is recorded before it
// begins, under the id that it will have, so that no daemon that comes after this one leaves
// it alone, or starts it twice. The caller closes the session.
func (e *Engine) startRun(
	ctx context.Context, s *held, rec *meta.Sandbox, run wire.Run,
) (_ wire.Run, session io.ReadWriteCloser, err error) {
	ctx = context.WithoutCancel(ctx) // what has begun is recorded
	before := rec.Run
	defer func() {
		if err == nil {
			return
		}
		rec.Run, rec.Starting = before, false
		uerr := e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Run, r.Starting = before, false; return nil })
		if uerr != nil {
			e.Logger.Error("a command that did not start stays recorded", "sandbox", rec.Name, "err", uerr)
		}
	}()
	if !rec.Starting {
		run.Starts++
		if run.Exec, err = e.newExecID(); err != nil {
			return run, nil, err
		}
	}
	run.Started, run.Ended, run.Exit = e.Now().UTC().Truncate(time.Microsecond), nil, nil
	rec.Run = &run // its box is started with it in mind
	err = e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Run, r.Starting = &run, true; return nil })
	if err != nil {
		return run, nil, err
	}
	c, session, err := e.openRun(ctx, s, rec, &run)
	if err == nil {
		err = e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
			r.Run, r.Again, r.Starting = &run, false, false
			return nil
		})
	}
	if err != nil {
		if session != nil {
			session.Close()
		}
		return run, nil, err
	}
	rec.Again, rec.Starting = false, false
	e.Feed.Emit(events.Started(rec, &run, labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: run.Cmd})))
	if run.Exit == nil {
		c.run = run
		e.supervise(s, s.box, c)
	}
	return run, session, nil
}

// openRun starts a supervised command, and waits until its beginning is recorded; and its end, if
// it cannot be run. The caller closes the session, also after an error, unless it is nil.
func (e *Engine) openRun(
	ctx context.Context, s *held, rec *meta.Sandbox, run *wire.Run,
) (c *command, session io.ReadWriteCloser, err error) {
	c, session, told, err := e.open(ctx, s, rec, wire.ExecRequest{
		ID: run.Exec, Cmd: run.Cmd, Env: run.Env, Dir: run.Dir, TTY: run.TTY, Stdin: run.Stdin, Size: run.Size, Keep: true,
	})
	s.begun++
	if err != nil {
		return nil, nil, err
	}
	err = begun(session, run)
	if fault.Is(err, fault.Exists) { // a daemon before this one came as far
		session.Close()
		if session, err = s.box.Exec(ctx, wire.ExecRequest{Attach: run.Exec}); err == nil {
			err = begun(session, run)
		}
	}
	if err != nil {
		e.notBegun(ctx, c, told, err)
		e.leave(s.entry, s.box, c)
		return c, session, err
	}
	if err := e.begins(ctx, s.box, c, told); err != nil || run.Exit == nil {
		return c, session, err
	}
	x := withHead(*run.Exit, rec.Head, taken{})
	if err := e.Book.Record(ctx, rec, e.exitRecords(ctx, rec, c, ending{}, x, taken{})...); err != nil {
		return c, session, err
	}
	e.commands.settle(c)
	return c, session, nil
}

// newExecID chooses what a supervised command is called by its keeper.
func (e *Engine) newExecID() (string, error) {
	b := make([]byte, 5)
	_, err := io.ReadFull(e.Rand, b)
	return "x" + hex.EncodeToString(b), fault.Wrap(err, "choose an id")
}

// supervises reports whether a sandbox has a supervised command whose changes are
// captured by themselves.
func supervises(rec *meta.Sandbox) bool {
	return rec.Run != nil && rec.Run.Ended == nil && !rec.Run.Capture.Off
}

// begun reads the first frame of a supervised command.
func begun(session io.Reader, run *wire.Run) error {
	m, x, err := first(session)
	switch {
	case err != nil:
	case x != nil:
		run.Exit, run.Ended = &x.Exit, &run.Started
	default:
		run.Exec = m.Exec
	}
	return err
}

// supervise makes a running command the sandbox's supervised one: it is followed to its end,
// and what the sandbox's processes change is captured.
func (e *Engine) supervise(s *held, b Box, c *command) {
	if before := s.run; before != nil {
		before.next = c
		close(before.done)
	}
	s.run = c
	sbx := s.entry
	e.await(sbx, b, c, func(end Ended, err error) bool { return e.runEnded(sbx, c, end, err) })
	every := time.Duration(c.run.Capture.MemoryEveryMS) * time.Millisecond
	if every >= images.LeastEvery {
		e.Images.KeepEvery(s.ID, b, every)
	}
	p, err := newPace(c.run.Capture)
	if err == nil && !c.run.Capture.Off && s.followed != b {
		s.followed = b
		e.bg.Go(func() error { e.follow(sbx, b, p); return nil })
	}
}

// runEnded does what follows from the end of a supervised command: a snapshot,
// another start, the removal of the sandbox. It reports whether that is recorded,
// or nobody's concern any more.
func (e *Engine) runEnded(sbx *entry, c *command, end Ended, err error) bool {
	ctx, told := e.bgCtx, false
	for delay := restartDelay(c.run, e.Now()); ; {
		s, lerr := e.lock(ctx, sbx, "after the end of its command")
		if lerr != nil {
			return false // another daemon finds it
		}
		rec, dberr := e.DB.Sandbox(ctx, string(s.ID))
		if s.run != c { // it was started anew meanwhile
			if dberr == nil {
				e.tellEnd(ctx, &rec, c, end, exitOf(c, end, err))
			}
			s.unlock(e)
			return true
		}
		if dberr != nil {
			e.endRun(s, c,
				wire.Exit{Code: end.Code, Signal: end.Signal, Message: "the sandbox was removed while the command ran"})
			s.unlock(e)
			return true
		}
		if !told {
			told = true
			e.Feed.Emit(events.Limits(&rec, c.id, labelOf(ctx, e.cleaners, &rec, wire.ExecRequest{Cmd: c.run.Cmd}), end.Exit)...)
		}
		if err == nil {
			rec.Starting = false // it did begin, whoever had no time left to note that
		}
		// What ended by itself was not stopped for a rewind, though one was about to be.
		due := err != nil && (rec.Again || rec.Starting) || end.Stopped && rec.Again
		// Who was stopped for what it did does not begin again by itself.
		if !c.stopped && !e.Egress.Halted(&rec, c.run.Started) && (due || c.run.Restart == wire.RestartAlways) {
			if delay > 0 && !due { // let others at it meanwhile
				s.unlock(e)
				select {
				case <-ctx.Done():
					return false
				case <-time.After(delay):
				}
				delay = 0
				continue
			}
			if e.again(ctx, s, &rec, end, err) {
				s.unlock(e)
				return true
			}
		}
		recorded := e.concludeRun(ctx, s, &rec, c, end, err)
		s.unlock(e)
		if !recorded {
			return false
		}
		break
	}
	if c.run.Remove {
		if err := e.removeOne(ctx, string(sbx.ID), true); err != nil {
			e.Logger.Error("the sandbox stays", "sandbox", sbx.ID, "err", err)
		}
	}
	return true
}

// restartDelay is how long to wait before a command is started again.
func restartDelay(run wire.Run, now time.Time) time.Duration {
	if now.Sub(run.Started) >= steady {
		return restartAfter
	}
	return min(restartAfter<<min(run.Starts-1, 10), restartMax)
}

// exitOf is the end of a supervised command, which is not known when its keeper ended.
func exitOf(c *command, end Ended, err error) wire.Exit {
	x := end.Exit
	if err != nil {
		x = wire.Exit{Code: 128 + 9, Signal: "KILL", Message: "the sandbox was stopped while the command ran"}
		if !c.stopped {
			x.Message = "the sandbox's keeper ended while the command ran"
		}
	}
	return x
}

// again captures, and starts the supervised command once more; false, with a line in the
// log, when that is impossible.
func (e *Engine) again(ctx context.Context, s *held, rec *meta.Sandbox, end Ended, ended error) bool {
	c := s.run
	e.journals.Finish(ctx, s.ID)
	tell := func(t taken) []audit.Statement {
		return e.exitRecords(ctx, rec, c, end, withHead(exitOf(c, end, ended), t.id, t), t)
	}
	n := note{cause: timeline.CauseAuto, message: labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: c.run.Cmd})}
	if !rec.Starting { // else it begins now, under this id
		n.with = tell
	}
	t, err := e.capture(ctx, s, rec, n)
	if err == nil && !t.told && !rec.Starting {
		err = e.Book.Record(ctx, rec, tell(t)...)
		t.told = err == nil
	}
	if t.told && !rec.Starting {
		e.commands.settle(c)
	}
	var session io.Closer
	if err == nil {
		_, session, err = e.startRun(ctx, s, rec, c.run)
	}
	if err != nil {
		e.Logger.Error("the command is not started again", "sandbox", rec.Name, "err", err)
		return false
	}
	session.Close()
	return s.run != c
}

// concludeRun captures what a supervised command left, and records its end; false,
// with a line in the log, when that is impossible.
func (e *Engine) concludeRun(ctx context.Context, s *held, rec *meta.Sandbox, c *command, end Ended, err error) bool {
	x := exitOf(c, end, err)
	code := x.Code
	e.journals.Finish(ctx, s.ID)
	t, cerr := e.capture(ctx, s, rec,
		note{cause: timeline.CauseExec, message: labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: c.run.Cmd}), exit: &code,
			still: end.Alone && s.begun == 1 && !s.mapped,
			with:  func(t taken) []audit.Statement { return e.exitRecords(ctx, rec, c, end, withHead(x, t.id, t), t) }})
	if cerr != nil {
		x.Message = "what the command changed is not in the history yet: " + cerr.Error()
		e.Logger.Error("what the command left is not in the history yet", "sandbox", rec.Name, "err", cerr)
	}
	x = withHead(x, rec.Head, t)
	if !t.told {
		e.Book.Note(ctx, rec, e.exitRecords(ctx, rec, c, end, x, t)...)
	}
	e.commands.settle(c)
	now := e.Now().UTC().Truncate(time.Microsecond)
	uerr := e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
		if r.Run != nil && r.Run.Exec == c.id {
			r.Again, r.Starting = false, false
			run := *r.Run
			run.Ended, run.Exit = &now, &x
			r.Run = &run
		}
		return nil
	})
	if uerr != nil {
		e.Logger.Error("the end of the command is not recorded", "sandbox", rec.Name, "err", uerr)
	}
	e.Feed.Emit(events.Exited(rec, c.id, labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: c.run.Cmd}), x))
	e.endRun(s, c, x)
	return uerr == nil
}

// endRun lets those who are attached know.
func (e *Engine) endRun(s *held, c *command, x wire.Exit) {
	c.exit = x
	if s.run == c {
		s.run = nil
	}
	close(c.done)
}

// resume takes up a supervised command that an earlier daemon left.
func (e *Engine) resume(s *held, rec *meta.Sandbox) {
	if rec.Run == nil || rec.Run.Ended != nil || s.run != nil {
		return
	}
	c := e.foundAgain(s.ID, rec.Run.Exec, rec.Run.Started)
	c.run = *rec.Run
	if b := e.liveBox(s); b != nil {
		e.supervise(s, b, c)
		return
	}
	// Its box ended while nobody looked.
	s.run = c
	sbx := s.entry
	e.bg.Go(func() error {
		e.runEnded(sbx, c, Ended{}, fault.New(fault.Unavailable, "the keeper has ended"))
		return nil
	})
}

// Ended is the end of a command as Box.Wait gives it.
type Ended struct {
	wire.Exit
	Alone   bool `json:"alone,omitempty"`   // no process was left when it was reaped
	Stopped bool `json:"stopped,omitempty"` // the box was being stopped then
	TTY     bool `json:"tty,omitempty"`     // it had a terminal

	Resources wire.Resources  `json:"resources,omitzero"`
	Env       []string        `json:"env,omitempty"` // its own environment
	Output    []wire.Recorded `json:"-"`             // what was recorded of its output
}

// willRestart notes that the supervised command is to be started again, where its policy
// wants that, before it is stopped for a rewind: also another daemon does so if this one is
// killed in between. What runs has begun, whoever had no time left to note that.
func (e *Engine) willRestart(ctx context.Context, s *held, rec *meta.Sandbox) error {
	if s.run == nil || s.run.stopped || s.run.run.Restart == wire.RestartNo {
		return nil
	}
	rec.Starting = false
	return e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Again, r.Starting = true, false; return nil })
}

// restart starts the supervised command again after a rewind, where its policy wants that.
func (e *Engine) restart(ctx context.Context, s *held, rec *meta.Sandbox) (bool, error) {
	c := s.run
	if c == nil || c.stopped || c.run.Restart == wire.RestartNo {
		return false, nil
	}
	run, session, err := e.startRun(ctx, s, rec, c.run)
	if err != nil {
		return false,
			fault.Wrap(err, "sandbox %s is at snapshot %s, but its command is not started again", rec.Name, rec.Head)
	}
	session.Close()
	if run.Exit != nil { // it cannot be run there
		e.endRun(s, c, *run.Exit)
	}
	return run.Exit == nil, nil
}

// commandLine is how a command is shown.
func commandLine(cmd []string) string { return label.OfCommand(wire.ExecRequest{Cmd: cmd}) }

// attachRun connects a client to the supervised command, over all its starts,
// until it has ended for good or the client has gone: then it runs on.
func (e *Engine) attachRun(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	s, rec, err := e.acquire(ctx, name, "attaching")
	if err != nil {
		return wire.Exit{}, err
	}
	defer e.Lifetimes.Use(s.ID)()
	c, last := s.run, rec.Run
	s.unlock(e)
	if c == nil {
		if last != nil && last.Exit != nil && req.Attach == last.Exec {
			return *last.Exit, nil // it ended while the client was away
		}
		if last == nil {
			return wire.Exit{}, fault.New(fault.NotFound, "sandbox %s has no supervised command", rec.Name).
				WithHint("start one with: coppice run --in %s -- CMD", rec.Name)
		}
		return wire.Exit{}, fault.New(fault.NotFound, "the command of sandbox %s has ended", rec.Name).
			WithHint("what it changed is in the history: coppice log %s; start it again with: coppice run --in %s -- CMD",
				rec.Name, rec.Name)
	}
	if req.Attach != wire.AttachRun && req.Attach != c.id {
		req.Offset = 0 // the client counted the bytes of an earlier start
	}
	return e.stay(ctx, s.entry, c, nil, req, stream)
}

// runAttached starts the supervised command and connects the client to it.
func (e *Engine) runAttached(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	sbx, c, run, session, err := e.newRun(waited, name, *req.Run)
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	if run.Exit != nil {
		return *run.Exit, session.Close()
	}
	defer e.Lifetimes.Use(sbx.ID)()
	if err := wire.WriteJSON(stream, wire.FrameStarted, wire.Started{Exec: run.Exec, PID: 1}); err != nil {
		return wire.Exit{}, errors.Join(errDetached, session.Close())
	}
	return e.stay(ctx, sbx, c, session, req, stream)
}

func decodeFailure(p []byte) error {
	var x wire.Error
	if err := decode(p, &x); err != nil {
		return err
	}
	return &fault.Error{Kind: fault.Kind(x.Kind), Message: x.Message, Hint: x.Hint}
}
