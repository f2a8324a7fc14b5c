//go:build linux

package command

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Exec runs a command in a sandbox, and starts its box if there is none; or it attaches to a running command. See
// httpapi.Commands for the frames. It waits for the exit of a command that is not kept even if the client
// disconnects, and then takes a snapshot if anything changed.
func (r *Runner) Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	switch {
	case req.Run != nil:
		return r.startAttached(ctx, name, req, stream)
	case req.Attach != "":
		return r.attach(ctx, name, req, stream)
	case req.Keep:
		return r.startAttached(ctx, name, req, stream)
	}
	return r.exec(ctx, name, req, stream, Evidence{})
}

// ExecWithin is Exec for a new command that is not kept, of whose effects at most most is recorded: a command that the
// sandbox can have run as often as it likes.
func (r *Runner) ExecWithin(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter, most Evidence,
) (wire.Exit, error) {
	return r.exec(ctx, name, req, stream, most)
}

// exec runs a command that belongs to the client at the other end of stream.
func (r *Runner) exec(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter, most Evidence,
) (wire.Exit, error) {
	if len(req.Cmd) == 0 {
		return wire.Exit{}, fault.New(fault.Invalid, "no command was given").
			WithHint("give it after --, for example: coppice exec %s -- ls -l", name)
	}
	if req.TimeoutMS > 0 && !limit.InLife(req.TimeoutMS) {
		return wire.Exit{}, fault.New(fault.Invalid, "invalid timeout_ms %d: the limit is 100 years", req.TimeoutMS).
			WithHint("use a shorter time, or 0 for none")
	}
	err := checkCapture(req.Capture, name)
	if err != nil {
		return wire.Exit{}, err
	}
	if req.ID, err = r.newID(); err != nil {
		return wire.Exit{}, err
	}
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	defer unwatch()
	s, rec, err := r.acquire(waited, name, "starting a command")
	if err != nil {
		return wire.Exit{}, err
	}
	defer r.c.Sandboxes.Use(rec.ID)()
	sits := r.presence(ctx, rec.ID, req)
	defer sits.leaves()
	o, err := r.open(waited, s, &rec, req, most, sits.coming()...)
	if err == nil {
		r.captureDuring(s, o.box, o.command)
	}
	unwatch()
	s.unlock()
	if err != nil {
		return wire.Exit{}, err
	}
	return r.serve(ctx, o, &rec, sits, stream)
}

// opened is a command that was started in a box, or that a client is attached to.
type opened struct {
	*command
	place    *place
	box      Box
	session  io.ReadWriteCloser // closed by the caller
	recorded *audit.Pending     // the record of its start; nil: it was already running

	// The content of the first frame, if the Runner follows the command.
	started wire.Started
	failed  *Ended // why it cannot be run; nil: it runs
}

// open starts the box if there is none, and the command in it. When it returns, the start of the command is still
// being recorded: the caller waits for the record (awaitStart) before it reports to a client that the command runs.
// besides is recorded with the start.
func (r *Runner) open(
	ctx context.Context, s *held, rec *meta.Sandbox, req wire.ExecRequest, most Evidence, besides ...audit.Statement,
) (*opened, error) {
	s.begun++
	if err := r.c.Cleaners.Learn(ctx, rec, req.Env); err != nil {
		return nil, err
	}
	o := &opened{command: newCommand(rec.ID, req.ID, r.c.Now(), rec.Head), place: s.at}
	o.req, o.most, o.begun = req, most, s.begun
	r.c.Register.add(o.command)
	tell, err := r.beginning(ctx, rec, req, besides)
	if err == nil {
		o.box, o.recorded, err = s.Start(ctx, rec, tell...)
	}
	if err != nil {
		r.c.Register.settle(o.command)
		return nil, err
	}
	o.session, err = o.box.Exec(ctx, req)
	if fault.Is(err, fault.Unavailable) {
		// Usually the keeper was idle and exited between the check and the call.
		again, serr := s.StartOther(ctx, rec, err)
		if err = serr; err == nil {
			o.box = again
			o.session, err = o.box.Exec(ctx, req)
		}
	}
	if err != nil {
		r.recordNoStart(ctx, o, err)
		return nil, err
	}
	r.c.Register.starts(o.command, r.c.Now())
	return o, nil
}

// beginning returns the records for the start of a command; none if its start is already recorded.
func (r *Runner) beginning(
	ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest, besides []audit.Statement,
) ([]audit.Statement, error) {
	known, err := r.startIsRecorded(ctx, rec, req.ID)
	if err != nil || known {
		return nil, err
	}
	return append([]audit.Statement{r.execRecord(ctx, rec, req)}, besides...), nil
}

// startIsRecorded reports whether the start of a command is already recorded. Only the supervised command can be
// started under an id that a killed daemon had chosen.
func (r *Runner) startIsRecorded(ctx context.Context, rec *meta.Sandbox, exec string) (bool, error) {
	if !rec.Starting || rec.Run == nil || rec.Run.Exec != exec {
		return false, nil
	}
	begun := ledger.Filter{Kinds: []format.Kind{format.KindExec}}
	for rd, err := range r.c.Ledger.Read(ctx, format.Sandbox(rec.ID), begun) {
		if err != nil {
			return false, err
		}
		if b, ok := rd.Body.(*format.Exec); ok && b.Exec == exec {
			return true, nil
		}
	}
	return false, nil
}

// awaitStart waits until the start of a running command is recorded. If it cannot be recorded, the sandbox
// is stopped.
func (r *Runner) awaitStart(ctx context.Context, o *opened) error {
	seq, own := o.recorded.Find(isExec)
	err := o.recorded.Wait()
	if err == nil {
		if own {
			r.c.Register.runs(o.command, seq)
		}
		return nil
	}
	r.c.Register.settle(o.command)
	// The command's children may have left its process group, and must not continue unrecorded.
	return errors.Join(err, o.box.Stop(context.WithoutCancel(ctx), 0))
}

// didNotStart records that a command did not start, if its keeper refused it. If the keeper has exited, the command
// may have started, and the record of its start stays.
func (r *Runner) didNotStart(ctx context.Context, o *opened, cause error) {
	if o.recorded.Wait() != nil {
		r.settleUnstarted(o)
	} else if !fault.Is(cause, fault.Unavailable) {
		r.recordNoStart(ctx, o, cause)
	}
}

// recordNoStart records that a command did not start.
func (r *Runner) recordNoStart(ctx context.Context, o *opened, cause error) {
	o.recorded.Undo(ctx, cause, func(b format.Body) bool { return isExec(b) || b.Kind() == format.KindSession })
	r.settleUnstarted(o)
}

// settleUnstarted settles a command that did not start, if this start was recorded.
func (r *Runner) settleUnstarted(o *opened) {
	if _, own := o.recorded.Find(isExec); own {
		r.c.Register.settle(o.command)
	}
}

func isExec(b format.Body) bool { return b.Kind() == format.KindExec }

// serve carries frames between the client at the other end of stream and a command until the command exits, and
// settles the command. sits is the client's presence.
func (r *Runner) serve(
	ctx context.Context, o *opened, rec *meta.Sandbox, sits *presence, stream io.ReadWriter,
) (wire.Exit, error) {
	defer r.c.Register.relayed(o.command)()
	began := o.recorded == nil
	end, err := relay(ctx, rec.Name, o.session, stream, sits.leaves, func() error {
		if o.recorded == nil {
			return nil
		}
		began = true
		if err := r.awaitStart(ctx, o); err != nil {
			return err
		}
		sits.came()
		r.c.Feed.Emit(events.Exec(rec, o.id, Message(ctx, r.c.Cleaners, rec, o.req)))
		return nil
	})
	if err != nil && !began {
		r.didNotStart(ctx, o, err)
	}
	var unrecorded error
	if o.recorded != nil {
		unrecorded = o.recorded.Wait()
	}
	if unrecorded != nil || err != nil {
		if unrecorded == nil {
			r.leave(o)
		}
		return end.Exit, cmp.Or(unrecorded, err)
	}
	r.c.Register.ends(o.command, end)
	x, err := r.settle(ctx, o.place, o.command, end)
	r.emitEnd(ctx, rec, o.command, x)
	return x, err
}

// settle captures what a command changed and completes its exit, which is recorded with the snapshot if there is one.
func (r *Runner) settle(ctx context.Context, p *place, c *command, end Ended) (exit wire.Exit, err error) {
	exit = end.Exit
	ctx = context.WithoutCancel(ctx)
	s, err := r.lock(ctx, p, "capturing after a command")
	if err != nil {
		return exit, err
	}
	defer s.unlock()
	defer r.captureOver(s)
	rec, err := r.c.Records.Sandbox(ctx, string(p.id))
	if fault.Is(err, fault.NotFound) {
		exit.Message = "the sandbox was removed while the command ran"
		return exit, nil
	}
	if err != nil {
		return exit, err
	}
	if now := r.c.Register.find(p.id, c.id); now != nil && now != c {
		exit.Message = "the sandbox was rewound to another snapshot, where this command continues from memory: " +
			"coppice attach " + rec.Name + " " + c.id
	}
	r.c.Journals.Finish(ctx, p.id)
	o := &outcome{command: c, end: end, exit: exit, programs: s.EndPrograms(ctx, &rec)}
	captured, err := r.conclude(ctx, s, &rec, o, timeline.CauseExec)
	if err != nil && !captured {
		r.recordEnd(ctx, &rec, c, end, exit)
		return r.c.Register.whole(c, exit), fault.Wrap(err,
			"the command exited with exit code %d, but its changes could not be captured", exit.Code)
	}
	return r.c.Register.whole(c, o.exit), err
}

// outcome is the result of a command whose exit is about to be recorded.
type outcome struct {
	*command
	end      Ended
	exit     wire.Exit             // sent to the clients
	programs *audit.EndingPrograms // programs to record with the exit; nil: none
}

// conclude captures what a command has changed, records its exit, with the snapshot if there is one, and settles it.
// It completes the exit of o. captured reports whether the changes are in the history. If they are, an error means
// that the exit is not recorded or, if it is, that processes of the box were not resumed.
func (r *Runner) conclude(
	ctx context.Context, s *held, rec *meta.Sandbox, o *outcome, cause timeline.Cause,
) (captured bool, err error) {
	tell := func(x wire.Exit, t Taken) []audit.Statement {
		return slices.Concat(o.programs.Records(), r.exitRecords(ctx, rec, o.command, o.end, x, t))
	}
	n := Note{
		Cause: cause, Message: Message(ctx, r.c.Cleaners, rec, o.req),
		With: func(t Taken) []audit.Statement { return tell(withHead(o.exit, t.ID, t), t) },
	}
	if cause == timeline.CauseExec {
		code := o.exit.Code
		n.Exit, n.Alone = &code, o.end.Alone && s.begun == o.begun
	}
	t, err := s.Capture(ctx, rec, n)
	if err != nil && !t.Recorded {
		o.programs.Written(err)
		return false, err
	}
	o.exit = withHead(o.exit, rec.Head, t)
	if !t.Recorded {
		if err := r.c.Book.Record(ctx, rec, tell(o.exit, t)...); err != nil {
			o.programs.Written(err)
			return true, err
		}
	}
	o.programs.Written(nil)
	r.c.Register.settle(o.command)
	return true, err
}

// withHead adds the result of the capture to the exit of a command.
func withHead(x wire.Exit, head timeline.SnapshotID, t Taken) wire.Exit {
	x.Head, x.Snapshot, x.Changed, x.Paths = string(head), string(t.ID), t.Changed, t.Paths
	return x
}
