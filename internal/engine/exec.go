//go:build linux

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Exec runs a command in a sandbox, starting its box when there is none, and
// then takes a snapshot if anything changed. It sees the command through, and
// captures, even when the client goes away; see httpapi.Commands for the frames.
func (e *Engine) Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	if req.Run != nil {
		return e.runAttached(ctx, name, req, stream)
	}
	if req.Attach == "" && req.Keep {
		return e.execKept(ctx, name, req, stream)
	}
	if k, s := e.findKept(ctx, name, req.Attach); k != nil {
		return e.attachKept(ctx, s, k, req, stream)
	}
	if req.Attach == wire.AttachRun || req.Attach != "" && req.Keep {
		return e.attachRun(ctx, name, req, stream)
	}
	if len(req.Cmd) == 0 && req.Attach == "" {
		return wire.Exit{}, fault.New(fault.Invalid, "no command was given").
			WithHint("give it after --, as in: coppice exec %s -- ls -l", name)
	}
	req.Keep, req.ID = false, ""
	if req.Attach == "" {
		var err error
		if req.ID, err = e.newExecID(); err != nil {
			return wire.Exit{}, err
		}
	}
	waited, unwatch := withWaiter(ctx, stream)
	defer unwatch()
	s, rec, err := e.acquire(waited, name, "starting a command")
	if err != nil {
		return wire.Exit{}, err
	}
	defer e.use(s.id)()
	sits := e.presence(ctx, s, req)
	defer sits.leaves()
	session, told, err := e.open(waited, s, &rec, req, sits.coming()...)
	unwatch()
	of := issued{id: req.ID, at: e.Now(), before: rec.Head}
	box := s.box
	s.begun++
	begun := s.begun
	s.unlock(e)
	if err != nil {
		return wire.Exit{}, err
	}
	if req.Attach != "" {
		of, begun = issued{id: req.Attach}, 0 // who knows what began since
		left, err := e.attended(ctx, s, req)
		if err != nil {
			return wire.Exit{}, errors.Join(err, session.Close())
		}
		defer left()
	}
	began := req.Attach != ""
	defer e.relayed(s.id, of.id)()
	exit, err := e.relay(ctx, rec.Name, session, stream, sits.leaves, func(wire.Started) error {
		if req.Attach != "" {
			return nil
		}
		began = true
		if err := e.begins(ctx, box, req.ID, told); err != nil {
			return err
		}
		sits.came()
		e.executing(ctx, &rec, req, req.ID)
		return nil
	})
	if err != nil && !began {
		e.notBegun(ctx, told, err)
	}
	if rerr := told.wait(); rerr != nil || err != nil {
		if rerr == nil && box != nil {
			e.leave(s, box, of.id)
		}
		return exit.Exit, cmp.Or(rerr, err)
	}
	e.endKnown(s.id, of, exit)
	x, err := e.settle(ctx, s, req, exit, begun, of)
	e.limited(ctx, &rec, req, of.id, x)
	e.exited(ctx, &rec, req, of.id, x)
	return x, err
}

// begins waits until it is recorded that a command begins, which it has done already;
// when that cannot be, the sandbox is stopped.
func (e *Engine) begins(ctx context.Context, b Box, exec string, told *telling) error {
	err := told.wait()
	if err == nil {
		for i, d := range told.drafts {
			if _, ok := d.Body.(*format.Exec); ok {
				e.began(timeline.SandboxID(d.Sandbox), exec, told.got[i].Seq)
			}
		}
		return nil
	}
	e.closed(timeline.SandboxID(told.drafts[0].Sandbox), exec)
	// What it has started may have left its process group, and must not run on unrecorded.
	return errors.Join(err, b.Stop(context.WithoutCancel(ctx), 0))
}

// ending is the last frame of a command, as Box.Exec has it.
type ending = Ended

// open starts the box if need be and the command in it, which is recorded meanwhile: what
// comes of that is for the caller to wait for, before anybody is told that it runs. What is
// to be recorded of it besides comes with it.
func (e *Engine) open(ctx context.Context, s *sandbox, rec *meta.Sandbox, req wire.ExecRequest, besides ...testimony) (_ io.ReadWriteCloser, told *telling, err error) {
	if req.Attach != "" && e.liveBox(s) == nil {
		return nil, nil, fault.New(fault.NotFound, "exec %s has ended and its result was collected or lost", req.Attach).
			WithHint("what it changed is in the history: coppice log %s", rec.Name)
	}
	if err := e.cleaners.Learn(ctx, rec, req.Env); err != nil {
		return nil, nil, err
	}
	var tell []testimony
	if req.Attach == "" {
		e.opened(issued{req.ID, e.Now(), rec.Head}, rec.ID)
		known, err := e.wasTold(ctx, rec, req.ID)
		if err != nil {
			e.closed(rec.ID, req.ID)
			return nil, nil, err
		}
		if !known {
			tell = append([]testimony{e.execRecord(ctx, rec, req)}, besides...)
		}
	}
	b, told, err := e.startTelling(ctx, s, rec, tell...)
	if err != nil {
		e.closed(rec.ID, req.ID)
		return nil, nil, err
	}
	session, err := b.Exec(ctx, req)
	if fault.Is(err, fault.Unavailable) && req.Attach == "" {
		// The keeper ended by itself, being idle, between our look and the call.
		s.box = nil
		again, serr := e.start(ctx, s, rec)
		if err = serr; err == nil {
			session, err = again.Exec(ctx, req)
		}
	}
	if err != nil {
		e.takeBack(ctx, told, err)
		return nil, nil, err
	}
	return session, told, nil
}

// notBegun takes back that a command begins, which its keeper refused; when the keeper
// itself ended, nobody knows.
func (e *Engine) notBegun(ctx context.Context, told *telling, cause error) {
	if told.wait() != nil {
		e.closedOf(told)
	} else if !fault.Is(cause, fault.Unavailable) {
		e.takeBack(ctx, told, cause)
	}
}

// takeBack tells that a command did not begin.
func (e *Engine) takeBack(ctx context.Context, told *telling, cause error) {
	defer e.closedOf(told)
	if told.wait() != nil {
		return
	}
	for i, d := range told.drafts {
		switch d.Body.(type) {
		case *format.Exec, *format.Session:
			e.undone(ctx, told.drafts[i:i+1], told.got[i:i+1], cause)
		}
	}
}

// closedOf notes that the command that is told of did not begin.
func (e *Engine) closedOf(told *telling) {
	for _, d := range told.drafts {
		if b, ok := d.Body.(*format.Exec); ok {
			e.closed(timeline.SandboxID(d.Sandbox), b.Exec)
		}
	}
}

// leave has a command that runs on without whoever was attached seen through by the daemon.
func (e *Engine) leave(s *sandbox, b Box, exec string) {
	if c, open := e.openOf(s.id, exec); open && e.bgCtx.Err() == nil {
		e.bg.Go(func() error { e.seeThrough(s, b, c); return nil })
	}
}

// wasTold reports whether it is recorded already that a command begins: only the supervised
// command can begin under an id that a daemon before this one chose, and was killed.
func (e *Engine) wasTold(ctx context.Context, rec *meta.Sandbox, exec string) (bool, error) {
	if !rec.Starting || rec.Run == nil || rec.Run.Exec != exec {
		return false, nil
	}
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(rec.ID), ledger.Filter{Kinds: []format.Kind{format.KindExec}}) {
		if err != nil {
			return false, err
		}
		if b, ok := r.Body.(*format.Exec); ok && b.Exec == exec {
			return true, nil
		}
	}
	return false, nil
}

// relay carries frames between the client and the keeper until the command's
// exit. When the client goes away the keeper is told to hang up; the output is
// left to the keeper, which never lets a command wait for a reader. A session
// that just ends, as with this process, hangs nothing up: the client attaches
// again. gone is called when the client went away, and started when the command runs, before
// the client is told; with its error it ends.
func (e *Engine) relay(ctx context.Context, name string, session io.ReadWriteCloser, stream io.ReadWriter, gone func(), started func(wire.Started) error) (ending, error) {
	var input sync.WaitGroup
	defer input.Wait()
	if s, ok := stream.(interface{ SetReadDeadline(time.Time) error }); ok {
		defer func() { _ = s.SetReadDeadline(time.Unix(1, 0)) }() // a closed one needs none
	}
	defer session.Close()
	unhook := context.AfterFunc(ctx, func() { session.Close() })
	defer unhook()

	input.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			t, p, err := wire.ReadFrame(stream, buf)
			if err != nil {
				// The client's loss as a living daemon sees it is final. It goes
				// nowhere when it is our own end: the session is closed by then.
				t, p = wire.FrameHangup, nil
			}
			werr := wire.WriteFrame(session, t, p)
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // that is our own end
				gone()
			}
			if werr != nil || err != nil {
				return
			}
		}
	})

	var buf []byte
	var recorded []wire.Recorded
	deaf := false
	for {
		whole, err := wire.ReadWhole(session, buf)
		if err != nil {
			if ctx.Err() != nil {
				return ending{}, fault.New(fault.Unavailable, "the daemon is stopping; the command runs on").Because(context.Cause(ctx))
			}
			return ending{}, fault.New(fault.Unavailable, "the sandbox's keeper ended while the command ran").
				WithHint("what was written is still there; see it with: coppice log %s", name).Because(err)
		}
		buf = whole
		switch p := whole[wire.FrameHead:]; wire.FrameType(whole[0]) {
		case wire.FrameExit:
			x := ending{Output: recorded}
			err := decode(p, &x)
			return x, err
		case wire.FrameRecorded:
			if recorded, err = wire.AddRecorded(recorded, p); err != nil {
				return ending{}, fault.New(fault.Internal, "a frame of the keeper").Because(err)
			}
		case wire.FrameFailed:
			return ending{}, decodeFailure(p)
		case wire.FrameStarted:
			var x wire.Started
			if err := decode(p, &x); err != nil {
				return ending{}, err
			}
			if err := started(x); err != nil {
				return ending{}, err
			}
			fallthrough
		default:
			if !deaf {
				_, err = stream.Write(whole)
				deaf = err != nil
			}
		}
	}
}

func decode(p []byte, v any) error {
	if err := json.Unmarshal(p, v); err != nil {
		return fault.New(fault.Internal, "a frame of the keeper").Because(err)
	}
	return nil
}

// settle captures what a command changed and completes its exit. begun is how many
// commands had begun with this one, and of what is known of its beginning. Its end is
// recorded, with the snapshot if there is one.
func (e *Engine) settle(ctx context.Context, s *sandbox, req wire.ExecRequest, end ending, begun int, of issued) (exit wire.Exit, err error) {
	exit = end.Exit
	ctx = context.WithoutCancel(ctx)
	if err := s.acquire(ctx, e, "capturing after a command"); err != nil {
		return exit, err
	}
	defer s.unlock(e)
	rec, err := e.DB.Sandbox(ctx, string(s.id))
	if fault.Is(err, fault.NotFound) {
		exit.Message = "the sandbox was removed while the command ran"
		return exit, nil
	}
	if err != nil {
		return exit, err
	}
	if now, open := e.openOf(s.id, of.id); open && now.other(of) {
		exit.Message = "the sandbox was brought to another snapshot, where this command goes on from memory: coppice attach " + rec.Name + " " + of.id
	}
	e.tellDenials(ctx, s)
	code := exit.Code
	programs := e.endPrograms(ctx, s, &rec)
	ends := func(x wire.Exit, t taken) []testimony {
		return slices.Concat(programs.records(), e.exitRecords(ctx, &rec, of, end, x, t))
	}
	t, err := e.capture(ctx, s, &rec, note{
		cause: timeline.CauseExec, message: labelOf(ctx, e.cleaners, &rec, req), exit: &code,
		still: end.Alone && s.begun == begun && !s.mapped,
		with:  func(t taken) []testimony { return ends(withHead(exit, t.id, t), t) },
	})
	if err != nil {
		programs.written(err)
		e.note(ctx, &rec, e.exitRecords(ctx, &rec, of, end, exit, t)...)
		e.closed(s.id, of.id)
		return exit, fault.Wrap(err, "the command ended with exit code %d, but what it changed is not in the history yet", code)
	}
	exit = withHead(exit, rec.Head, t)
	if !t.told {
		err = e.record(ctx, &rec, ends(exit, t)...)
	}
	if err == nil {
		e.closed(s.id, of.id)
	}
	programs.written(err)
	return exit, err
}

// withHead completes the end of a command by what was captured after it.
func withHead(x wire.Exit, head timeline.SnapshotID, t taken) wire.Exit {
	x.Head, x.Snapshot, x.Changed, x.Paths = string(head), string(t.id), t.changed, t.stats.Paths
	return x
}

// label is the message of a command's snapshot.
func label(req wire.ExecRequest) string {
	if req.Label != "" {
		return req.Label
	}
	return visible.Command(req.Cmd)
}

// Start makes sure that a sandbox runs: that its supervised command does, where it
// has one, whatever the policy of that, and else that commands find it ready.
func (e *Engine) Start(ctx context.Context, name string) (wire.StatusResult, error) {
	if err := e.startUp(ctx, name); err != nil {
		return wire.StatusResult{}, err
	}
	return e.Status(ctx, name)
}

func (e *Engine) startUp(ctx context.Context, name string) error {
	s, rec, err := e.acquire(ctx, name, "starting")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	if rec.Run == nil || rec.Run.Remove || s.run != nil && !s.run.stopped {
		_, err := e.start(ctx, s, &rec)
		return err
	}
	exit, err := e.startAgain(ctx, s, &rec)
	if err == nil && exit != nil {
		return cannotStart(&rec, exit)
	}
	return err
}

// startAgain starts the supervised command of a sandbox, which runs nowhere; it gives
// an exit when it cannot be run any more. The caller holds the lock.
func (e *Engine) startAgain(ctx context.Context, s *sandbox, rec *meta.Sandbox) (*wire.Exit, error) {
	run, session, err := e.startRun(ctx, s, rec, *rec.Run)
	if err != nil {
		return nil, fault.Wrap(err, "start the command of sandbox %s again", rec.Name)
	}
	return run.Exit, session.Close()
}

// cannotStart says that a supervised command cannot be run any more.
func cannotStart(rec *meta.Sandbox, exit *wire.Exit) *fault.Error {
	return fault.New(fault.Conflict, "the command of sandbox %s cannot be started again: %s", rec.Name, exit.Message).
		WithHint("start another one: coppice run --in %s --detach -- CMD", rec.Name)
}

// Stop ends all processes of a sandbox and captures what they left.
func (e *Engine) Stop(ctx context.Context, name string) (wire.StopResult, error) {
	s, rec, err := e.acquireToEnd(ctx, e.acquire, name, "stopping", "was stopped", limit.CaptureStopSeconds*time.Second)
	if err != nil {
		return wire.StopResult{}, err
	}
	defer s.unlock(e)
	var res wire.StopResult
	if b := e.liveBox(s); b != nil {
		if res.Stopped, err = procsInTime(ctx, b); err != nil {
			e.Logger.Warn("the processes that a stop ends could not be counted", "err", err)
			res.Uncounted = true
		}
	}
	if s.run != nil {
		s.run.stopped = true
	}
	if err := e.stopBox(ctx, s, stopGrace); err != nil {
		return wire.StopResult{}, err
	}
	_, err = e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: "stopped"})
	res.Head = string(rec.Head)
	return res, err
}

// stopGrace is what processes are given between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second
