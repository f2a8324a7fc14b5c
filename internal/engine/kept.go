//go:build linux

package engine

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
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A kept command belongs to nobody who is connected: clients come and go, and what
// it changed is captured when it ends, also by a daemon that came after the one
// that started it. Its keeper is what remembers it.

// afterlife is how long the output and the exit of a kept command can still be
// asked for when it has ended.
const (
	afterlife = time.Minute
	// maxEnded is for how many commands of a sandbox that holds: their output takes
	// memory.
	maxEnded = 32
)

// StartExec runs a command for nobody in particular, and gives what it is called.
// One that could not be started has an Exit.
func (e *Engine) StartExec(ctx context.Context, name string, req wire.ExecRequest) (wire.ExecInfo, error) {
	_, c, info, session, err := e.newKept(ctx, name, req)
	if err != nil {
		return info, err
	}
	session.Close()
	if info.Exit != nil {
		<-c.done
		info.Exit = &c.exit
		return info, c.err
	}
	return info, nil
}

// execKept runs a command that a client is attached to from its first byte, and
// that does not mind when the client goes away.
func (e *Engine) execKept(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	sbx, c, info, session, err := e.newKept(waited, name, req)
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	if info.Exit != nil {
		session.Close()
		<-c.done
		return c.exit, c.err
	}
	if err := wire.WriteJSON(stream, wire.FrameStarted, wire.Started{Exec: c.id, PID: info.PID}); err != nil {
		return wire.Exit{}, errors.Join(errDetached, session.Close())
	}
	return e.stay(ctx, sbx, c, session, req, stream)
}

// newKept starts a kept command. The caller closes the session, in which the
// command's first frame was read.
func (e *Engine) newKept(ctx context.Context, name string, req wire.ExecRequest) (
	sbx *entry, c *command, info wire.ExecInfo, session io.ReadWriteCloser, err error,
) {
	if len(req.Cmd) == 0 {
		err = fault.New(fault.Invalid, "no command was given").WithHint("give it as \"cmd\", a list of words")
		return nil, nil, info, nil, err
	}
	s, rec, err := e.acquire(ctx, name, "starting a command")
	if err != nil {
		return nil, nil, info, nil, err
	}
	defer s.unlock(e)
	if req.ID, err = e.newExecID(); err != nil {
		return nil, nil, info, nil, err
	}
	req.Keep, req.Attach, req.Offset, req.ReadOnly, req.Run = true, "", 0, false, nil
	c, session, told, err := e.open(ctx, s, &rec, req)
	s.begun++
	if err != nil {
		return nil, nil, info, nil, err
	}
	m, x, err := first(session)
	if err == nil {
		err = e.begins(ctx, s.box, c, told)
	} else {
		e.notBegun(ctx, c, told, err)
		e.leave(s.entry, s.box, c)
	}
	if err != nil {
		return nil, nil, info, nil, errors.Join(err, session.Close())
	}
	c.begun = s.begun
	info = wire.ExecInfo{
		ID: c.id, Cmd: req.Cmd, PID: m.PID, Started: e.Now().UTC(), TTY: req.TTY, Stdin: req.Stdin || req.TTY, Kept: true,
	}
	if x != nil {
		info.Exit = &x.Exit
	} else {
		e.Feed.Emit(events.Exec(&rec, c.id, labelOf(ctx, e.cleaners, &rec, req)))
	}
	e.keep(s, s.box, c)
	return s.entry, c, info, session, nil
}

// first reads the first frame of a command: it runs, or cannot be run.
func first(session io.Reader) (m wire.Started, x *ending, err error) {
	t, p, err := wire.ReadFrame(session, nil)
	if err != nil {
		return m, nil, fault.New(fault.Unavailable, "the sandbox's keeper ended while the command was started").Because(err)
	}
	switch t {
	case wire.FrameStarted:
		err = decode(p, &m)
	case wire.FrameExit:
		x = new(ending)
		err = decode(p, x)
	case wire.FrameFailed:
		err = decodeFailure(p)
	default:
		err = fault.New(fault.Internal, "the keeper began with frame %d", t)
	}
	return m, x, err
}

// keep follows a kept command to its end, captures, and forgets it after a while.
func (e *Engine) keep(s *held, b Box, c *command) {
	if s.kept == nil {
		s.kept = map[string]*command{}
	}
	s.kept[c.id] = c
	sbx := s.entry
	e.await(sbx, b, c, func(end Ended, err error) bool {
		e.keptEnded(sbx, c, end, err)
		return e.linger(sbx, b, c)
	})
}

// keptEnded does what follows from the end of a kept command.
func (e *Engine) keptEnded(s *entry, c *command, end Ended, err error) {
	if err != nil {
		end = killed("the sandbox was stopped while the command ran")
	}
	c.exit, c.err = e.settle(e.bgCtx, s, c, end, c.begun)
	if c.err != nil {
		e.Logger.Error("what a command changed is not in the history yet", "sandbox", s.ID, "err", c.err)
	}
	if rec, err := e.DB.Sandbox(e.bgCtx, string(s.ID)); err == nil {
		message := labelOf(e.bgCtx, e.cleaners, &rec, c.req)
		e.Feed.Emit(events.Limits(&rec, c.id, message, c.exit)...)
		e.Feed.Emit(events.Exited(&rec, c.id, message, c.exit))
	}
	close(c.done)
}

// linger holds the result of a kept command for a while, and reports whether the keeper may
// forget it then.
func (e *Engine) linger(sbx *entry, b Box, c *command) bool {
	s, err := e.lock(e.bgCtx, sbx, "noting the end of a command")
	if err != nil {
		return false
	}
	if s.past = append(s.past, c); len(s.past) > maxEnded {
		close(s.past[0].drop)
		s.past = slices.Delete(s.past, 0, 1)
	}
	s.unlock(e)
	late := time.NewTimer(afterlife)
	defer late.Stop()
	select {
	case <-e.bgCtx.Done():
		return false
	case <-b.Gone():
	case <-c.drop:
	case <-late.C:
	}
	if s, err = e.lock(e.bgCtx, sbx, "forgetting a command"); err != nil {
		return false
	}
	defer s.unlock(e)
	if s.kept[c.id] == c { // else another one goes on under its id, from memory
		delete(s.kept, c.id)
	}
	s.past = slices.DeleteFunc(s.past, func(p *command) bool { return p == c })
	return true
}

// findKept finds a kept command of a sandbox; nil when it has none of that id.
func (e *Engine) findKept(ctx context.Context, name, id string) (*command, *entry) {
	if id == "" || id == wire.AttachRun {
		return nil, nil
	}
	s, _, err := e.acquire(ctx, name, "attaching")
	if err != nil {
		return nil, nil // the next one to ask gets the same answer
	}
	defer s.unlock(e)
	return s.kept[id], s.entry
}

// resumeKept takes up the kept commands that an earlier daemon left.
func (e *Engine) resumeKept(s *held, rec *meta.Sandbox, a attached) {
	for _, x := range a.execs {
		if x.Kept && (rec.Run == nil || x.ID != rec.Run.Exec) {
			c := e.foundAgain(s.ID, x.ID, x.Started)
			c.req = wire.ExecRequest{Cmd: x.Cmd}
			e.keep(s, a.box, c)
		}
	}
}

// foundAgain is a command that an earlier daemon began at a time: it is open, or its end is
// recorded already.
func (e *Engine) foundAgain(id timeline.SandboxID, exec string, at time.Time) *command {
	if c := e.commands.find(id, exec); c != nil {
		return c
	}
	return newCommand(id, exec, at, "")
}

// Execs lists the commands that run in a sandbox, oldest first.
func (e *Engine) Execs(ctx context.Context, name string) ([]wire.ExecInfo, error) {
	s, rec, err := e.acquire(ctx, name, "listing commands")
	if err != nil {
		return nil, err
	}
	b := e.liveBox(s)
	s.unlock(e)
	if b == nil {
		return []wire.ExecInfo{}, nil
	}
	all, err := b.Execs(ctx)
	if fault.Is(err, fault.Unavailable) {
		return []wire.ExecInfo{}, nil
	}
	out := []wire.ExecInfo{}
	for _, x := range all {
		if x.Exit == nil {
			x.Supervised = rec.Run != nil && rec.Run.Exec == x.ID
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b wire.ExecInfo) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

// SignalExec sends a signal ("TERM") to a running command.
func (e *Engine) SignalExec(ctx context.Context, name, exec, signal string) error {
	return e.withBox(ctx, name, exec, func(b Box) error { return b.Signal(ctx, exec, signal) })
}

// CancelExec ends a running command: SIGTERM, two seconds, SIGKILL. It does not
// wait for that.
func (e *Engine) CancelExec(ctx context.Context, name, exec string) error {
	return e.withBox(ctx, name, exec, func(b Box) error { return b.Cancel(ctx, exec) })
}

// InputExec gives a running command what r holds, at the pace that it reads it,
// and with eof the end of its input.
func (e *Engine) InputExec(ctx context.Context, name, exec string, r io.Reader, eof bool) error {
	return e.withBox(ctx, name, exec, func(b Box) error { return b.Input(ctx, exec, r, eof) })
}

// withBox calls fn with the box that a command runs in.
func (e *Engine) withBox(ctx context.Context, name, exec string, fn func(Box) error) error {
	s, rec, err := e.acquire(ctx, name, "reaching a command")
	if err != nil {
		return err
	}
	b := e.liveBox(s)
	s.unlock(e)
	gone := fault.New(fault.NotFound, "no exec %s runs in sandbox %s", exec, rec.Name).
		WithHint("see those that do: GET /v1/sandboxes/%s/execs", rec.Name)
	if b == nil {
		return gone
	}
	if err := fn(b); fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unavailable) {
		return gone.Because(err)
	} else if err != nil {
		return err
	}
	return nil
}
