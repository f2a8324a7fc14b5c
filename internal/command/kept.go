//go:build linux

package command

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// A kept command does not belong to a connected client. Clients attach and detach, and the changes of the command are
// captured when it exits, also by a later daemon than the one that started it. Its keeper has its state.

const (
	// resultLife is how long the output and the exit of a kept command are available after it has exited.
	resultLife = time.Minute
	// MaxEnded is the number of exited commands of a sandbox whose output and exit are available. Output takes memory.
	MaxEnded = 32
)

// StartExec starts a command without a client attached. A command that could not be started has an Exit.
func (r *Runner) StartExec(ctx context.Context, name string, req wire.ExecRequest) (wire.ExecInfo, error) {
	o, err := r.newKept(ctx, name, req)
	if err != nil {
		return wire.ExecInfo{}, err
	}
	o.session.Close()
	info := wire.ExecInfo{
		ID: o.id, Cmd: req.Cmd, PID: o.started.PID, Started: r.c.Now().UTC(), TTY: req.TTY, Stdin: req.Stdin || req.TTY,
		Kept: true, Capture: req.Capture,
	}
	if o.failed != nil {
		exit, err := o.result(ctx)
		info.Exit = &exit
		return info, err
	}
	return info, nil
}

// newKept starts a kept command. The caller closes the session, whose first frame has been read.
func (r *Runner) newKept(ctx context.Context, name string, req wire.ExecRequest) (*opened, error) {
	if len(req.Cmd) == 0 {
		return nil, fault.New(fault.Invalid, "no command was given").WithHint("send \"cmd\", a list of arguments")
	}
	if req.TimeoutMS > 0 && !limit.InLife(req.TimeoutMS) {
		return nil, fault.New(fault.Invalid, "invalid timeout_ms %d: the limit is 100 years", req.TimeoutMS).
			WithHint("use a shorter time, or 0 for none")
	}
	if err := checkCapture(req.Capture, name); err != nil {
		return nil, err
	}
	s, rec, err := r.acquire(ctx, name, "starting a command")
	if err != nil {
		return nil, err
	}
	defer s.unlock()
	if req.ID, err = r.newID(); err != nil {
		return nil, err
	}
	req.Attach, req.Offset, req.ReadOnly, req.Run = "", 0, false, nil
	o, err := r.openFollowed(ctx, s, &rec, req)
	if err != nil {
		return nil, err
	}
	if o.failed == nil {
		r.c.Feed.Emit(events.Exec(&rec, o.id, Message(ctx, r.c.Cleaners, &rec, req)))
	}
	r.keep(s, o.box, o.command)
	return o, nil
}

// openFollowed starts a command that the Runner will follow, and waits until its start is recorded. The caller closes
// the session, whose first frame has been read.
func (r *Runner) openFollowed(
	ctx context.Context, s *held, rec *meta.Sandbox, req wire.ExecRequest,
) (_ *opened, err error) {
	req.Keep = true
	o, err := r.open(ctx, s, rec, req, Evidence{})
	if err != nil {
		return nil, err
	}
	o.started, o.failed, err = readFirst(o.session)
	if fault.Is(err, fault.Exists) { // an earlier daemon had already started the supervised command
		o.session.Close()
		var again io.ReadWriteCloser
		if again, err = o.box.Exec(ctx, wire.ExecRequest{Attach: req.ID}); err == nil {
			o.session = again
			o.started, o.failed, err = readFirst(again)
		}
	}
	if err != nil {
		r.didNotStart(ctx, o, err)
		r.leave(o)
	} else {
		err = r.awaitStart(ctx, o)
	}
	if err != nil {
		o.session.Close()
		return nil, err
	}
	return o, nil
}

// keep follows a kept command until it exits, captures its changes, and forgets it after a while.
func (r *Runner) keep(s *held, b Box, c *command) {
	if s.kept == nil {
		s.kept = map[string]*command{}
	}
	s.kept[c.id] = c
	r.captureDuring(s, b, c)
	p := s.at
	r.await(p, b, c, func(ctx context.Context, end Ended, err error) bool {
		r.keptEnded(ctx, p, c, end, err)
		return r.linger(ctx, p, b, c)
	})
}

// keptEnded processes the exit of a kept command.
func (r *Runner) keptEnded(ctx context.Context, p *place, c *command, end Ended, err error) {
	if err != nil {
		end = killed(stoppedMeanwhile)
	}
	c.exit, c.err = r.settle(ctx, p, c, end)
	if c.err != nil {
		r.c.Log.Error("could not capture the changes of a command", "sandbox", p.id, "err", c.err)
	}
	if rec, err := r.c.Records.Sandbox(ctx, string(p.id)); err == nil {
		r.emitEnd(ctx, &rec, c, c.exit)
	}
	close(c.done)
}

// linger makes the result of a kept command available for a while. It returns true when the keeper may forget the
// command.
func (r *Runner) linger(ctx context.Context, p *place, b Box, c *command) bool {
	s, err := r.lock(ctx, p, "recording the exit of a command")
	if err != nil {
		return false
	}
	if s.past = append(s.past, c); len(s.past) > MaxEnded {
		close(s.past[0].drop)
		s.past = slices.Delete(s.past, 0, 1)
	}
	s.unlock()
	late := time.NewTimer(resultLife)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-b.Gone():
	case <-c.drop:
	case <-late.C:
	}
	if s, err = r.lock(ctx, p, "forgetting a command"); err != nil {
		return false
	}
	defer s.unlock()
	if s.kept[c.id] == c { // otherwise a command that resumed from memory has the id
		delete(s.kept, c.id)
	}
	s.past = slices.DeleteFunc(s.past, func(p *command) bool { return p == c })
	return true
}

// startAttached starts a command that the Runner follows, supervised or kept. The client at the other end of stream
// is attached from the first byte. The command continues when the client disconnects.
func (r *Runner) startAttached(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	start, supervised := r.newKept, req.Run != nil
	if supervised {
		start = func(ctx context.Context, name string, req wire.ExecRequest) (*opened, error) {
			return r.newRun(ctx, name, *req.Run)
		}
	}
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	o, err := start(waited, name, req)
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	if o.failed != nil {
		cerr := o.session.Close()
		exit, err := o.result(ctx)
		return exit, cmp.Or(err, cerr)
	}
	m := wire.Started{Exec: o.id, PID: o.started.PID}
	if supervised {
		defer r.c.Sandboxes.Use(o.place.id)()
		m.PID = 1
	}
	if err := wire.WriteJSON(stream, wire.FrameStarted, m); err != nil {
		return wire.Exit{}, errors.Join(errDetached, o.session.Close())
	}
	return r.stay(ctx, o.place, o.command, o.session, req, stream)
}
