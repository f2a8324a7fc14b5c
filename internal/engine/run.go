//go:build linux

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// supervised is one start of a sandbox's supervised command. When it has ended,
// and everything that follows from that has been done, settled is closed; the
// rest is then final.
type supervised struct {
	run     wire.Run
	settled chan struct{}
	exit    wire.Exit
	next    *supervised // the start that came after it; nil: none

	stopped bool // guarded by the sandbox's lock: it is not to be started again
}

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
// returns; where it has begun, sup is it all the same. The caller closes the session, in which
// the command's first frame was read.
func (e *Engine) newRun(ctx context.Context, name string, req wire.RunRequest) (s *sandbox, sup *supervised, run wire.Run, session io.ReadWriteCloser, err error) {
	if err := checkRun(&req, name); err != nil {
		return nil, nil, wire.Run{}, nil, err
	}
	s, rec, err := e.acquire(ctx, name, "starting a command")
	if err != nil {
		return nil, nil, wire.Run{}, nil, err
	}
	defer s.unlock(e)
	if c := req.Capture; c.MemoryEveryMS != 0 || c.MemoryOnMark {
		if err := e.keepsMemory(&rec); err != nil {
			return nil, nil, wire.Run{}, nil, err
		}
	}
	if s.run != nil {
		return nil, nil, wire.Run{}, nil, fault.New(fault.Conflict, "sandbox %s runs a command already: %s", rec.Name, commandLine(s.run.run.Cmd)).
			WithHint("see it with: coppice attach %s; run another beside it with: coppice exec %s -- CMD", rec.Name, rec.Name)
	}
	run, session, err = e.startRun(ctx, s, &rec, wire.Run{RunRequest: req})
	return s, s.run, run, session, err
}

func checkRun(req *wire.RunRequest, name string) error {
	if len(req.Cmd) == 0 {
		return fault.New(fault.Invalid, "no command was given").WithHint("give it after --, as in: coppice run --in %s -- bash", name)
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

// startRun starts a command as the sandbox's supervised one. It is recorded before
// it begins, under the id that it will have, so that no daemon that comes after
// this one leaves it alone, or starts it twice. The caller holds the lock, and
// closes the session.
func (e *Engine) startRun(ctx context.Context, s *sandbox, rec *meta.Sandbox, run wire.Run) (_ wire.Run, session io.ReadWriteCloser, err error) {
	ctx = context.WithoutCancel(ctx) // what has begun is recorded
	before := rec.Run
	defer func() {
		if err == nil {
			return
		}
		rec.Run, rec.Starting = before, false
		uerr := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Run, r.Starting = before, false; return nil })
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
	if err := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Run, r.Starting = &run, true; return nil }); err != nil {
		return run, nil, err
	}
	var told *telling
	session, told, err = e.open(ctx, s, rec, wire.ExecRequest{
		ID: run.Exec, Cmd: run.Cmd, Env: run.Env, Dir: run.Dir, TTY: run.TTY, Stdin: run.Stdin, Size: run.Size, Keep: true,
	})
	if err == nil {
		if err = begun(session, &run); fault.Is(err, fault.Exists) { // a daemon before this one came as far
			session.Close()
			if session, err = s.box.Exec(ctx, wire.ExecRequest{Attach: run.Exec}); err == nil {
				err = begun(session, &run)
			}
		}
		if err != nil {
			e.notBegun(ctx, told, err)
			e.leave(s, s.box, run.Exec)
		}
	}
	s.begun++
	if err == nil {
		err = e.begins(ctx, s.box, run.Exec, told)
	}
	if err == nil && run.Exit != nil {
		x := withHead(*run.Exit, rec.Head, taken{})
		if err = e.record(ctx, rec, e.exitRecords(ctx, rec, issued{run.Exec, run.Started, rec.Head}, ending{}, x, taken{})...); err == nil {
			e.closed(rec.ID, run.Exec)
		}
	}
	if err == nil {
		err = e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Run, r.Again, r.Starting = &run, false, false; return nil })
	}
	if err != nil {
		if session != nil {
			session.Close()
		}
		return run, nil, err
	}
	rec.Again, rec.Starting = false, false
	e.running(ctx, rec, &run)
	if run.Exit == nil {
		e.supervise(s, s.box, run)
	}
	return run, session, nil
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

// begun reads the first frame of a command: it runs, or cannot be run.
func begun(session io.Reader, run *wire.Run) error {
	t, p, err := wire.ReadFrame(session, nil)
	if err != nil {
		return fault.New(fault.Unavailable, "the sandbox's keeper ended while the command was started").Because(err)
	}
	switch t {
	case wire.FrameStarted:
		var m wire.Started
		err = decode(p, &m)
		run.Exec = m.Exec
	case wire.FrameExit:
		var x ending
		err = decode(p, &x)
		run.Exit, run.Ended = &x.Exit, &run.Started
	case wire.FrameFailed:
		err = decodeFailure(p)
	default:
		err = fault.New(fault.Internal, "the keeper began with frame %d", t)
	}
	return err
}

// supervise makes a running command the sandbox's supervised one: it is followed
// to its end, and what the sandbox's processes change is captured. The caller
// holds the lock.
func (e *Engine) supervise(s *sandbox, b Box, run wire.Run) {
	sup := &supervised{run: run, settled: make(chan struct{})}
	if before := s.run; before != nil {
		before.next = sup
		close(before.settled)
	}
	s.run = sup
	e.bg.Go(func() error {
		end, err := b.Wait(e.bgCtx, run.Exec)
		if err == nil {
			e.endKnown(s.id, issued{id: run.Exec, at: run.Started}, end)
		}
		if e.bgCtx.Err() == nil && e.runEnded(s, sup, end, err) {
			if err := b.Forget(e.bgCtx, run.Exec); err != nil && !fault.Is(err, fault.Unavailable) {
				e.Logger.Warn("the keeper holds a result for longer", "sandbox", s.id, "err", err)
			}
		}
		return nil
	})
	if every := time.Duration(run.Capture.MemoryEveryMS) * time.Millisecond; every >= leastMemory && s.keeping != b {
		s.keeping = b
		e.bg.Go(func() error { e.keepMemory(s, b, every); return nil })
	}
	p, err := newPace(run.Capture)
	if err == nil && !run.Capture.Off && s.followed != b {
		s.followed = b
		e.bg.Go(func() error { e.follow(s, b, p); return nil })
	}
}

// runEnded does what follows from the end of a supervised command: a snapshot,
// another start, the removal of the sandbox. It reports whether that is recorded,
// or nobody's concern any more.
func (e *Engine) runEnded(s *sandbox, sup *supervised, end Ended, err error) bool {
	ctx, told := e.bgCtx, false
	for delay := restartDelay(sup.run, e.Now()); ; {
		if s.acquire(ctx, e, "after the end of its command") != nil {
			return false // another daemon finds it
		}
		rec, dberr := e.DB.Sandbox(ctx, string(s.id))
		if s.run != sup { // it was started anew meanwhile
			if dberr == nil {
				e.tellEnd(ctx, &rec, issued{id: sup.run.Exec, at: sup.run.Started}, end, exitOf(sup, end, err))
			}
			s.unlock(e)
			return true
		}
		if dberr != nil {
			e.endRun(s, sup, wire.Exit{Code: end.Code, Signal: end.Signal, Message: "the sandbox was removed while the command ran"})
			s.unlock(e)
			return true
		}
		if !told {
			told = true
			e.limited(ctx, &rec, wire.ExecRequest{Cmd: sup.run.Cmd}, sup.run.Exec, end.Exit)
		}
		if err == nil {
			rec.Starting = false // it did begin, whoever had no time left to note that
		}
		// What ended by itself was not stopped for a rewind, though one was about to be.
		due := err != nil && (rec.Again || rec.Starting) || end.Stopped && rec.Again
		// Who was stopped for what it did does not begin again by itself.
		if !sup.stopped && !e.halted(sup.run.Started, &rec) && (due || sup.run.Restart == wire.RestartAlways) {
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
		recorded := e.concludeRun(ctx, s, &rec, sup, end, err)
		s.unlock(e)
		if !recorded {
			return false
		}
		break
	}
	if sup.run.Remove {
		if err := e.removeOne(ctx, string(s.id), true); err != nil {
			e.Logger.Error("the sandbox stays", "sandbox", s.id, "err", err)
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
func exitOf(sup *supervised, end Ended, err error) wire.Exit {
	x := end.Exit
	if err != nil {
		x = wire.Exit{Code: 128 + 9, Signal: "KILL", Message: "the sandbox was stopped while the command ran"}
		if !sup.stopped {
			x.Message = "the sandbox's keeper ended while the command ran"
		}
	}
	return x
}

// again captures, and starts the supervised command once more; false, with a line
// in the log, when that is impossible. The caller holds the lock.
func (e *Engine) again(ctx context.Context, s *sandbox, rec *meta.Sandbox, end Ended, ended error) bool {
	sup := s.run
	run := sup.run
	e.tellDenials(ctx, s)
	tell := func(t taken) []testimony {
		return e.exitRecords(ctx, rec, issued{id: run.Exec, at: run.Started}, end, withHead(exitOf(sup, end, ended), t.id, t), t)
	}
	t, err := e.capture(ctx, s, rec, note{
		cause: timeline.CauseAuto, message: labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: run.Cmd}), with: tell,
	})
	if err == nil && !t.told && !rec.Starting {
		err = e.record(ctx, rec, tell(t)...)
		t.told = err == nil
	}
	if t.told {
		e.closed(rec.ID, run.Exec)
	}
	var session io.Closer
	if err == nil {
		_, session, err = e.startRun(ctx, s, rec, run)
	}
	if err != nil {
		e.Logger.Error("the command is not started again", "sandbox", rec.Name, "err", err)
		return false
	}
	session.Close()
	return s.run != sup
}

// concludeRun captures what a supervised command left, and records its end; false,
// with a line in the log, when that is impossible.
func (e *Engine) concludeRun(ctx context.Context, s *sandbox, rec *meta.Sandbox, sup *supervised, end Ended, err error) bool {
	x := exitOf(sup, end, err)
	code := x.Code
	of := issued{id: sup.run.Exec, at: sup.run.Started}
	e.tellDenials(ctx, s)
	t, cerr := e.capture(ctx, s, rec, note{
		cause: timeline.CauseExec, message: labelOf(ctx, e.cleaners, rec, wire.ExecRequest{Cmd: sup.run.Cmd}),
		exit: &code, still: end.Alone && s.begun == 1 && !s.mapped,
		with: func(t taken) []testimony { return e.exitRecords(ctx, rec, of, end, withHead(x, t.id, t), t) },
	})
	if cerr != nil {
		x.Message = "what the command changed is not in the history yet: " + cerr.Error()
		e.Logger.Error("what the command left is not in the history yet", "sandbox", rec.Name, "err", cerr)
	}
	x = withHead(x, rec.Head, t)
	if !t.told {
		e.note(ctx, rec, e.exitRecords(ctx, rec, of, end, x, t)...)
	}
	e.closed(s.id, of.id)
	now := e.Now().UTC().Truncate(time.Microsecond)
	uerr := e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error {
		if r.Run != nil && r.Run.Exec == sup.run.Exec {
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
	e.exited(ctx, rec, wire.ExecRequest{Cmd: sup.run.Cmd}, sup.run.Exec, x)
	e.endRun(s, sup, x)
	return uerr == nil
}

// endRun lets those who are attached know. The caller holds the lock.
func (e *Engine) endRun(s *sandbox, sup *supervised, x wire.Exit) {
	sup.exit = x
	if s.run == sup {
		s.run = nil
	}
	close(sup.settled)
}

// resume takes up a supervised command that an earlier daemon left. The caller
// holds the lock.
func (e *Engine) resume(s *sandbox, rec *meta.Sandbox) {
	if rec.Run == nil || rec.Run.Ended != nil || s.run != nil {
		return
	}
	if b := e.liveBox(s); b != nil {
		e.supervise(s, b, *rec.Run)
		return
	}
	// Its box ended while nobody looked.
	sup := &supervised{run: *rec.Run, settled: make(chan struct{})}
	s.run = sup
	e.bg.Go(func() error {
		e.runEnded(s, sup, Ended{}, fault.New(fault.Unavailable, "the keeper has ended"))
		return nil
	})
}

// resumeAll takes up every supervised command when the engine begins, and finds the
// sandboxes that are to be stopped when they are idle.
func (e *Engine) resumeAll(ctx context.Context) {
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		e.Logger.Error("commands of an earlier daemon are not followed", "err", err)
		return
	}
	for i := range recs {
		if e.hasJournal(recs[i].ID) { // what was told while no daemon ran
			e.tellNet(ctx, e.sandbox(recs[i].ID))
		}
		if (recs[i].Run == nil || recs[i].Run.Ended != nil) && recs[i].IdleStopMS == 0 && !e.maybeLive(recs[i].ID) && len(e.openIn(recs[i].ID)) == 0 {
			continue
		}
		s, _, err := e.acquire(ctx, string(recs[i].ID), "taking its command up") // which resumes it
		if err != nil {
			if ctx.Err() == nil {
				e.Logger.Error("its command is not followed", "sandbox", recs[i].Name, "err", err)
			}
			continue
		}
		s.unlock(e)
	}
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

// willRestart notes that the supervised command is to be started again, where its
// policy wants that, before it is stopped for a rewind: also another daemon does so
// if this one is killed in between. What runs has begun, whoever had no time left to
// note that. The caller holds the lock.
func (e *Engine) willRestart(ctx context.Context, s *sandbox, rec *meta.Sandbox) error {
	if s.run == nil || s.run.stopped || s.run.run.Restart == wire.RestartNo {
		return nil
	}
	rec.Starting = false
	return e.DB.UpdateSandbox(ctx, s.id, func(r *meta.Sandbox) error { r.Again, r.Starting = true, false; return nil })
}

// restart starts the supervised command again after a rewind, where its policy
// wants that. The caller holds the lock.
func (e *Engine) restart(ctx context.Context, s *sandbox, rec *meta.Sandbox) (bool, error) {
	sup := s.run
	if sup == nil || sup.stopped || sup.run.Restart == wire.RestartNo {
		return false, nil
	}
	run, session, err := e.startRun(ctx, s, rec, sup.run)
	if err != nil {
		return false, fault.Wrap(err, "sandbox %s is at snapshot %s, but its command is not started again", rec.Name, rec.Head)
	}
	session.Close()
	if run.Exit != nil { // it cannot be run there
		e.endRun(s, sup, *run.Exit)
	}
	return run.Exit == nil, nil
}

// commandLine is how a command is shown.
func commandLine(cmd []string) string { return label(wire.ExecRequest{Cmd: cmd}) }

// attachRun connects a client to the supervised command, over all its starts,
// until it has ended for good or the client has gone: then it runs on.
func (e *Engine) attachRun(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	s, rec, err := e.acquire(ctx, name, "attaching")
	if err != nil {
		return wire.Exit{}, err
	}
	defer e.use(s.id)()
	sup, last := s.run, rec.Run
	s.unlock(e)
	if sup == nil {
		if last != nil && last.Exit != nil && req.Attach == last.Exec {
			return *last.Exit, nil // it ended while the client was away
		}
		if last == nil {
			return wire.Exit{}, fault.New(fault.NotFound, "sandbox %s has no supervised command", rec.Name).
				WithHint("start one with: coppice run --in %s -- CMD", rec.Name)
		}
		return wire.Exit{}, fault.New(fault.NotFound, "the command of sandbox %s has ended", rec.Name).
			WithHint("what it changed is in the history: coppice log %s; start it again with: coppice run --in %s -- CMD", rec.Name, rec.Name)
	}
	if req.Attach != wire.AttachRun && req.Attach != sup.run.Exec {
		req.Offset = 0 // the client counted the bytes of an earlier start
	}
	return e.stay(ctx, s, sup, nil, req, stream)
}

// runAttached starts the supervised command and connects the client to it.
func (e *Engine) runAttached(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	waited, unwatch := withWaiter(ctx, stream)
	s, sup, run, session, err := e.newRun(waited, name, *req.Run)
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	if run.Exit != nil {
		return *run.Exit, session.Close()
	}
	defer e.use(s.id)()
	if err := wire.WriteJSON(stream, wire.FrameStarted, wire.Started{Exec: run.Exec, PID: 1}); err != nil {
		return wire.Exit{}, errors.Join(errDetached, session.Close())
	}
	return e.stay(ctx, s, sup, session, req, stream)
}

// stay carries frames between a client and the supervised command, over all its
// starts from sup on. session is connected to that one; nil: not yet.
func (e *Engine) stay(ctx context.Context, s *sandbox, sup *supervised, session io.ReadWriteCloser, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	req.ID = sup.run.Exec
	if req.Attach == wire.AttachRun {
		req.Attach = sup.run.Exec
	}
	left, err := e.attended(ctx, s, req)
	if err != nil {
		if session != nil {
			err = errors.Join(err, session.Close())
		}
		return wire.Exit{}, err
	}
	defer left()
	a := newAttachment(stream, session, req)
	defer a.close()
	for {
		if session == nil {
			var err error
			if session, err = e.reach(ctx, s, sup, req); err != nil {
				return wire.Exit{}, err
			}
		}
		if session != nil {
			if err := carry(ctx, session, a); err != nil {
				return wire.Exit{}, err
			}
		}
		select {
		case <-sup.settled:
		case <-a.gone:
			return wire.Exit{}, errDetached
		case <-ctx.Done():
			return wire.Exit{}, fault.New(fault.Unavailable, "the daemon is stopping; the command runs on").Because(context.Cause(ctx))
		}
		if sup.next == nil {
			return sup.exit, nil
		}
		sup, session = sup.next, nil
		req.Offset, req.Size = 0, a.lastSize()
	}
}

// errDetached says that the client went away, to which there is nothing to add.
var errDetached = fault.New(fault.Cancelled, "detached")

// reach attaches to one start of the command; nil when that has ended.
func (e *Engine) reach(ctx context.Context, s *sandbox, sup *supervised, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	if err := s.acquire(ctx, e, "attaching"); err != nil {
		return nil, err
	}
	b := e.liveBox(s)
	s.unlock(e)
	if b == nil {
		return nil, nil // what becomes of it is told by sup.settled
	}
	session, err := b.Exec(ctx, wire.ExecRequest{Attach: sup.run.Exec, Offset: req.Offset, ReadOnly: req.ReadOnly, Size: req.Size})
	if fault.Is(err, fault.Unavailable) {
		return nil, nil
	}
	return session, err
}

// carry takes the frames of one start of the command to the client, and the
// client's to it, until that start or the client has gone. It closes the session.
func carry(ctx context.Context, session io.ReadWriteCloser, a *attachment) error {
	defer session.Close()
	unhook := context.AfterFunc(ctx, func() { session.Close() })
	defer unhook()
	if !a.connect(session) {
		return nil
	}
	defer a.connect(nil)
	buf := make([]byte, 64<<10)
	for {
		t, p, err := wire.ReadFrame(session, buf)
		switch {
		case err != nil:
			return nil // its keeper ended; what becomes of the command is told by sup.settled
		case t == wire.FrameExit:
			return nil
		case t == wire.FrameFailed:
			if err := decodeFailure(p); !fault.Is(err, fault.NotFound) { // it may have just ended
				return err
			}
			return nil
		}
		if a.write(t, p) != nil {
			a.leave()
			return nil
		}
	}
}

func decodeFailure(p []byte) error {
	var x wire.Error
	if err := decode(p, &x); err != nil {
		return err
	}
	return &fault.Error{Kind: fault.Kind(x.Kind), Message: x.Message, Hint: x.Hint}
}
