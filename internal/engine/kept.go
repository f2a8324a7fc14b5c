//go:build linux

package engine

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
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

// kept is one kept command. When it has ended and is captured, settled is closed;
// the rest is then final.
type kept struct {
	id      string
	req     wire.ExecRequest // what it was started with, as far as is known
	begun   int              // as in settle; -1: unknown
	settled chan struct{}
	drop    chan struct{} // closed when newer ones take its place
	of      issued
	exit    wire.Exit
	err     error
}

// StartExec runs a command for nobody in particular, and gives what it is called.
// One that could not be started has an Exit.
func (e *Engine) StartExec(ctx context.Context, name string, req wire.ExecRequest) (wire.ExecInfo, error) {
	_, k, info, session, err := e.newKept(ctx, name, req)
	if err != nil {
		return info, err
	}
	session.Close()
	if info.Exit != nil {
		<-k.settled
		info.Exit = &k.exit
		return info, k.err
	}
	return info, nil
}

// execKept runs a command that a client is attached to from its first byte, and
// that does not mind when the client goes away.
func (e *Engine) execKept(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	waited, unwatch := withWaiter(ctx, stream)
	s, k, info, session, err := e.newKept(waited, name, req)
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	if info.Exit != nil {
		session.Close()
		<-k.settled
		return k.exit, k.err
	}
	if err := wire.WriteJSON(stream, wire.FrameStarted, wire.Started{Exec: k.id, PID: info.PID}); err != nil {
		return wire.Exit{}, errors.Join(errDetached, session.Close())
	}
	return e.stayKept(ctx, s, k, session, req, stream)
}

// newKept starts a kept command. The caller closes the session, in which the
// command's first frame was read.
func (e *Engine) newKept(ctx context.Context, name string, req wire.ExecRequest) (*sandbox, *kept, wire.ExecInfo, io.ReadWriteCloser, error) {
	var info wire.ExecInfo
	if len(req.Cmd) == 0 {
		return nil, nil, info, nil, fault.New(fault.Invalid, "no command was given").WithHint("give it as \"cmd\", a list of words")
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
	session, told, err := e.open(ctx, s, &rec, req)
	of := issued{req.ID, e.Now(), rec.Head}
	s.begun++
	if err != nil {
		return nil, nil, info, nil, err
	}
	m, x, err := first(session)
	if err != nil {
		e.notBegun(ctx, told, err)
		e.leave(s, s.box, req.ID)
	} else {
		err = e.begins(ctx, s.box, req.ID, told)
	}
	if err != nil {
		return nil, nil, info, nil, errors.Join(err, session.Close())
	}
	k := &kept{id: req.ID, req: req, of: of, begun: s.begun, settled: make(chan struct{}), drop: make(chan struct{})}
	info = wire.ExecInfo{ID: k.id, Cmd: req.Cmd, PID: m.PID, Started: e.Now().UTC(), TTY: req.TTY, Stdin: req.Stdin || req.TTY, Kept: true}
	if x != nil {
		info.Exit = &x.Exit
	} else {
		e.Feed.Emit(events.Exec(&rec, k.id, e.labelOf(ctx, &rec, req)))
	}
	e.keep(s, s.box, k)
	return s, k, info, session, nil
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
// The caller holds the lock.
func (e *Engine) keep(s *sandbox, b Box, k *kept) {
	if s.kept == nil {
		s.kept = map[string]*kept{}
	}
	s.kept[k.id] = k
	e.bg.Go(func() error {
		end, err := b.Wait(e.bgCtx, k.id)
		if err == nil {
			e.endKnown(s.id, k.of, end)
		}
		if e.bgCtx.Err() == nil { // else another daemon finds it
			e.keptEnded(s, k, end, err)
			e.forgetKept(s, b, k)
		}
		return nil
	})
}

// keptEnded does what follows from the end of a kept command.
func (e *Engine) keptEnded(s *sandbox, k *kept, end Ended, err error) {
	if err != nil {
		end = killed("the sandbox was stopped while the command ran")
	}
	k.exit, k.err = e.settle(e.bgCtx, s, k.req, end, k.begun, k.of)
	if k.err != nil {
		e.Logger.Error("what a command changed is not in the history yet", "sandbox", s.id, "err", k.err)
	}
	if rec, err := e.DB.Sandbox(e.bgCtx, string(s.id)); err == nil {
		message := e.labelOf(e.bgCtx, &rec, k.req)
		e.Feed.Emit(events.Limits(&rec, k.id, message, k.exit)...)
		e.Feed.Emit(events.Exited(&rec, k.id, message, k.exit))
	}
	close(k.settled)
}

// forgetKept drops a kept command some time after its end.
func (e *Engine) forgetKept(s *sandbox, b Box, k *kept) {
	if s.acquire(e.bgCtx, e, "noting the end of a command") != nil {
		return
	}
	if s.past = append(s.past, k); len(s.past) > maxEnded {
		close(s.past[0].drop)
		s.past = slices.Delete(s.past, 0, 1)
	}
	s.unlock(e)
	late := time.NewTimer(afterlife)
	defer late.Stop()
	select {
	case <-e.bgCtx.Done():
		return
	case <-b.Gone():
	case <-k.drop:
	case <-late.C:
	}
	if err := b.Forget(e.bgCtx, k.id); err != nil && !fault.Is(err, fault.Unavailable) {
		e.Logger.Warn("the keeper holds a result for longer", "sandbox", s.id, "err", err)
	}
	if s.acquire(e.bgCtx, e, "forgetting a command") == nil {
		if s.kept[k.id] == k { // else another one goes on under its id, from memory
			delete(s.kept, k.id)
		}
		s.past = slices.DeleteFunc(s.past, func(p *kept) bool { return p == k })
		s.unlock(e)
	}
}

// findKept finds a kept command of a sandbox; nil when it has none of that id.
func (e *Engine) findKept(ctx context.Context, name, id string) (*kept, *sandbox) {
	if id == "" || id == wire.AttachRun {
		return nil, nil
	}
	s, _, err := e.acquire(ctx, name, "attaching")
	if err != nil {
		return nil, nil // whoever asks next gets the same answer
	}
	defer s.unlock(e)
	return s.kept[id], s
}

// attachKept connects a client to a kept command.
func (e *Engine) attachKept(ctx context.Context, s *sandbox, k *kept, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	if err := s.acquire(ctx, e, "attaching"); err != nil {
		return wire.Exit{}, err
	}
	b := e.liveBox(s)
	s.unlock(e)
	if b == nil { // what becomes of it is told by k.settled
		return e.stayKept(ctx, s, k, nil, req, stream)
	}
	session, err := b.Exec(ctx, wire.ExecRequest{Attach: k.id, Offset: req.Offset, ReadOnly: req.ReadOnly, Size: req.Size})
	if err != nil && !fault.Is(err, fault.Unavailable) {
		return wire.Exit{}, err
	}
	return e.stayKept(ctx, s, k, session, req, stream)
}

// stayKept carries frames between a client and a kept command until that has ended
// and is captured, or the client has gone.
func (e *Engine) stayKept(ctx context.Context, s *sandbox, k *kept, session io.ReadWriteCloser, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error) {
	req.ID = k.id
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
	if session != nil {
		if err := carry(ctx, session, a); err != nil {
			return wire.Exit{}, err
		}
	}
	select {
	case <-k.settled:
		return k.exit, k.err
	case <-a.gone:
		return wire.Exit{}, errDetached
	case <-ctx.Done():
		return wire.Exit{}, fault.New(fault.Unavailable, "the daemon is stopping; the command runs on").Because(context.Cause(ctx))
	}
}

// resumeKept takes up the kept commands that an earlier daemon left. The caller
// holds the lock.
func (e *Engine) resumeKept(ctx context.Context, s *sandbox, rec *meta.Sandbox) {
	b := e.liveBox(s)
	if b == nil {
		return
	}
	all, err := b.Execs(ctx)
	if err != nil {
		e.Logger.Warn("commands of an earlier daemon are not followed", "sandbox", rec.Name, "err", err)
		return
	}
	for _, x := range all {
		if x.Kept && (rec.Run == nil || x.ID != rec.Run.Exec) {
			e.keep(s, b, &kept{id: x.ID, req: wire.ExecRequest{Cmd: x.Cmd}, of: issued{id: x.ID, at: x.Started}, begun: -1, settled: make(chan struct{}), drop: make(chan struct{})})
		}
	}
}

// maybeLive reports whether a keeper may run: it has left a socket.
func (e *Engine) maybeLive(id timeline.SandboxID) bool {
	entries, err := os.ReadDir(e.runDir(id))
	return err == nil && slices.ContainsFunc(entries, func(d fs.DirEntry) bool { return d.Type() == fs.ModeSocket })
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
