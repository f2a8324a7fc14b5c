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
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
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
	if c, sbx := e.findKept(ctx, name, req.Attach); c != nil {
		return e.stay(ctx, sbx, c, nil, req, stream)
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
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	defer unwatch()
	s, rec, err := e.acquire(waited, name, "starting a command")
	if err != nil {
		return wire.Exit{}, err
	}
	sbx := s.entry // as long as the lock is held, and after that
	defer e.Lifetimes.Use(sbx.ID)()
	sits := e.presence(ctx, sbx, req)
	defer sits.leaves()
	c, session, told, err := e.open(waited, s, &rec, req, sits.coming()...)
	unwatch()
	box := s.box
	s.begun++
	begun := s.begun
	s.unlock(e)
	if err != nil {
		return wire.Exit{}, err
	}
	if req.Attach != "" {
		begun = -1 // others may have begun since
		left, err := e.attended(ctx, sbx, req)
		if err != nil {
			return wire.Exit{}, errors.Join(err, session.Close())
		}
		defer left()
	}
	began := req.Attach != ""
	defer e.commands.relayed(c)()
	exit, err := e.relay(ctx, rec.Name, session, stream, sits.leaves, func(wire.Started) error {
		if req.Attach != "" {
			return nil
		}
		began = true
		if err := e.begins(ctx, box, c, told); err != nil {
			return err
		}
		sits.came()
		e.Feed.Emit(events.Exec(&rec, req.ID, labelOf(ctx, e.cleaners, &rec, req)))
		return nil
	})
	if err != nil && !began {
		e.notBegun(ctx, c, told, err)
	}
	if rerr := told.Wait(); rerr != nil || err != nil {
		if rerr == nil && box != nil {
			e.leave(sbx, box, c)
		}
		return exit.Exit, cmp.Or(rerr, err)
	}
	e.commands.ends(c, exit)
	x, err := e.settle(ctx, sbx, c, exit, begun)
	message := labelOf(ctx, e.cleaners, &rec, req)
	e.Feed.Emit(events.Limits(&rec, c.id, message, x)...)
	e.Feed.Emit(events.Exited(&rec, c.id, message, x))
	return x, err
}

// begins waits until it is recorded that a command begins, which it has done already;
// when that cannot be, the sandbox is stopped.
func (e *Engine) begins(ctx context.Context, b Box, c *command, told *audit.Pending) error {
	seq, own := told.Find(isExec)
	err := told.Wait()
	if err == nil {
		if own {
			e.commands.runs(c, seq)
		}
		return nil
	}
	e.commands.settle(c)
	// What it has started may have left its process group, and must not run on unrecorded.
	return errors.Join(err, b.Stop(context.WithoutCancel(ctx), 0))
}

// ending is the last frame of a command, as Box.Exec has it.
type ending = Ended

// open starts the box if need be and the command in it, which is recorded meanwhile: what
// comes of that is for the caller to wait for, before anybody is told that it runs. What is
// to be recorded of it besides comes with it.
func (e *Engine) open(
	ctx context.Context, s *held, rec *meta.Sandbox, req wire.ExecRequest, besides ...audit.Statement,
) (c *command, _ io.ReadWriteCloser, told *audit.Pending, err error) {
	if req.Attach != "" && e.liveBox(s) == nil {
		err := fault.New(fault.NotFound, "exec %s has ended and its result was collected or lost", req.Attach).
			WithHint("what it changed is in the history: coppice log %s", rec.Name)
		return nil, nil, nil, err
	}
	if err := e.cleaners.Learn(ctx, rec, req.Env); err != nil {
		return nil, nil, nil, err
	}
	if req.Attach != "" {
		c = e.foundAgain(rec.ID, req.Attach, time.Time{})
	} else {
		c = newCommand(rec.ID, req.ID, e.Now(), rec.Head)
		c.req = req
		e.commands.add(c)
	}
	var b Box
	tell, err := e.beginning(ctx, rec, req, besides)
	if err == nil {
		b, told, err = e.startTelling(ctx, s, rec, tell...)
	}
	if err != nil {
		if req.Attach == "" {
			e.commands.settle(c)
		}
		return nil, nil, nil, err
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
		e.takeBack(ctx, c, told, err)
		return nil, nil, nil, err
	}
	if req.Attach == "" {
		e.commands.starts(c, e.Now())
	}
	return c, session, told, nil
}

// beginning is what is recorded as a command begins; nothing of one that is attached to, or whose
// beginning is recorded already.
func (e *Engine) beginning(
	ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest, besides []audit.Statement,
) ([]audit.Statement, error) {
	if req.Attach != "" {
		return nil, nil
	}
	known, err := e.wasTold(ctx, rec, req.ID)
	if err != nil || known {
		return nil, err
	}
	return append([]audit.Statement{execRecord(ctx, e.cleaners, rec, req)}, besides...), nil
}

// notBegun takes back that a command begins, which its keeper refused; when the keeper
// itself ended, nobody knows.
func (e *Engine) notBegun(ctx context.Context, c *command, told *audit.Pending, cause error) {
	if told.Wait() != nil {
		e.settleUnbegun(c, told)
	} else if !fault.Is(cause, fault.Unavailable) {
		e.takeBack(ctx, c, told, cause)
	}
}

// takeBack tells that a command did not begin.
func (e *Engine) takeBack(ctx context.Context, c *command, told *audit.Pending, cause error) {
	told.Undo(ctx, cause, func(b format.Body) bool { return isExec(b) || b.Kind() == format.KindSession })
	e.settleUnbegun(c, told)
}

// settleUnbegun notes that the command whose beginning was told did not begin.
func (e *Engine) settleUnbegun(c *command, told *audit.Pending) {
	if _, own := told.Find(isExec); own {
		e.commands.settle(c)
	}
}

func isExec(b format.Body) bool { return b.Kind() == format.KindExec }

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
func (e *Engine) relay(
	ctx context.Context, name string, session io.ReadWriteCloser, stream io.ReadWriter, gone func(),
	started func(wire.Started) error,
) (ending, error) {
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
				return ending{}, fault.New(fault.Unavailable, "the daemon is stopping; the command runs on").
					Because(context.Cause(ctx))
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
// commands had begun with this one; -1: not known. Its end is recorded, with the snapshot if
// there is one.
func (e *Engine) settle(
	ctx context.Context, sbx *entry, c *command, end ending, begun int,
) (exit wire.Exit, err error) {
	exit = end.Exit
	ctx = context.WithoutCancel(ctx)
	s, err := e.lock(ctx, sbx, "capturing after a command")
	if err != nil {
		return exit, err
	}
	defer s.unlock(e)
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if fault.Is(err, fault.NotFound) {
		exit.Message = "the sandbox was removed while the command ran"
		return exit, nil
	}
	if err != nil {
		return exit, err
	}
	if now := e.commands.find(s.ID, c.id); now != nil && now != c {
		exit.Message = "the sandbox was brought to another snapshot, where this command goes on from memory: " +
			"coppice attach " + rec.Name + " " + c.id
	}
	e.journals.Finish(ctx, s.ID)
	code := exit.Code
	programs := s.programs.End(ctx, &rec)
	s.ending = programs
	ends := func(x wire.Exit, t taken) []audit.Statement {
		return slices.Concat(programs.Records(), e.exitRecords(ctx, &rec, c, end, x, t))
	}
	t, err := e.capture(ctx, s, &rec, note{
		cause: timeline.CauseExec, message: labelOf(ctx, e.cleaners, &rec, c.req), exit: &code,
		still: end.Alone && s.begun == begun && !s.mapped,
		with:  func(t taken) []audit.Statement { return ends(withHead(exit, t.id, t), t) },
	})
	if err != nil {
		programs.Written(err)
		e.Book.Note(ctx, &rec, e.exitRecords(ctx, &rec, c, end, exit, t)...)
		e.commands.settle(c)
		return exit,
			fault.Wrap(err, "the command ended with exit code %d, but what it changed is not in the history yet", code)
	}
	exit = withHead(exit, rec.Head, t)
	if !t.told {
		err = e.Book.Record(ctx, &rec, ends(exit, t)...)
	}
	if err == nil {
		e.commands.settle(c)
	}
	programs.Written(err)
	return exit, err
}

// withHead completes the end of a command by what was captured after it.
func withHead(x wire.Exit, head timeline.SnapshotID, t taken) wire.Exit {
	x.Head, x.Snapshot, x.Changed, x.Paths = string(head), string(t.id), t.changed, t.stats.Paths
	return x
}
