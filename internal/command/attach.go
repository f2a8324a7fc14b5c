//go:build linux

package command

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// attachment is a client's connection to a command that the Runner follows. Frames from the client go to the start of
// the command that is running. Between two starts, input waits for the next start, and so does the client; signals
// are lost.
type attachment struct {
	stream io.ReadWriter
	gone   chan struct{} // closed when the client disconnected
	input  sync.WaitGroup

	mu        sync.Mutex
	connected sync.Cond      // signals that session changed, or that over was set
	session   io.WriteCloser // nil: none
	turn      int            // incremented with each session
	over      bool           // closed, or the client disconnected
	size      *wire.Size     // of the client's terminal
}

// newAttachment starts to read frames from the client, until close. They go to session from the first one on, since a
// client that has received FrameStarted may already have sent input. session is nil for a client that has not
// received it.
func newAttachment(stream io.ReadWriter, session io.WriteCloser, req wire.ExecRequest) *attachment {
	a := &attachment{stream: stream, session: session, gone: make(chan struct{}), size: req.Size}
	a.connected.L = &a.mu
	a.input.Go(a.read)
	return a
}

func (a *attachment) read() {
	buf := make([]byte, 64<<10)
	for {
		t, p, err := wire.ReadFrame(a.stream, buf)
		if err != nil {
			a.leave()
			return
		}
		a.deliver(t, p)
	}
}

// leave records that the client disconnected. This is noticed when a read from the client fails, or a write to it
// while its input waits.
func (a *attachment) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.gone:
		return
	default:
	}
	close(a.gone)
	if a.session != nil {
		a.session.Close()
	}
	a.end()
}

// end wakes input that waits for a session. a.mu is held.
func (a *attachment) end() {
	a.over = true
	a.connected.Broadcast()
}

// deliver sends a frame to the running start of the command. If that start exits before it has taken the frame, input
// goes to the next start: a checkout may return before the daemon is connected to the resumed command, and input
// typed then must not be lost. Signals and sizes are dropped.
func (a *attachment) deliver(t wire.FrameType, p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var size wire.Size
	if t == wire.FrameResize && json.Unmarshal(p, &size) == nil {
		a.size = &size
	}
	for {
		session, turn := a.session, a.turn
		if session != nil {
			a.mu.Unlock()
			err := wire.WriteFrame(session, t, p)
			a.mu.Lock()
			if err == nil {
				return
			}
		}
		if t != wire.FrameStdin && t != wire.FrameStdinEOF {
			return
		}
		for a.turn == turn && !a.over {
			a.connected.Wait()
		}
		if a.over {
			return
		}
	}
}

// connect sets the destination of the client's frames; nil: none. It reports whether the client is connected.
func (a *attachment) connect(session io.WriteCloser) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = session
	a.turn++
	a.connected.Broadcast()
	select {
	case <-a.gone:
		return false
	default:
		return true
	}
}

// write sends a frame to the client.
func (a *attachment) write(t wire.FrameType, p []byte) error {
	return wire.WriteFrame(a.stream, t, p)
}

func (a *attachment) lastSize() *wire.Size {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size
}

// close stops reading from the client.
func (a *attachment) close() {
	a.mu.Lock()
	a.end()
	a.mu.Unlock()
	if s, ok := a.stream.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = s.SetReadDeadline(time.Unix(1, 0)) // fails only if the stream is closed
	}
	a.input.Wait()
}

// attach connects a client to a command that runs or has just exited: a kept one, the supervised one, or one whose
// client has disconnected.
func (r *Runner) attach(
	ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	waited, unwatch := sandbox.WithWaiter(ctx, stream)
	s, rec, err := r.acquire(waited, name, "attaching")
	unwatch()
	if err != nil {
		return wire.Exit{}, err
	}
	p := s.at
	if c := s.kept[req.Attach]; c != nil {
		s.unlock()
		return r.stay(ctx, p, c, nil, req, stream)
	}
	defer r.c.Sandboxes.Use(rec.ID)()
	if req.Attach == wire.AttachRun || req.Keep {
		c := s.run
		s.unlock()
		return r.attachRun(ctx, p, &rec, c, req, stream)
	}
	o, err := r.reachLost(ctx, s, &rec, req)
	s.unlock()
	if err != nil {
		return wire.Exit{}, err
	}
	left, err := r.attended(ctx, rec.ID, req)
	if err != nil {
		return wire.Exit{}, errors.Join(err, o.session.Close())
	}
	defer left()
	return r.serve(ctx, o, &rec, &presence{}, stream)
}

// reachLost attaches to a command that is not kept, and whose client has disconnected.
func (r *Runner) reachLost(
	ctx context.Context, s *held, rec *meta.Sandbox, req wire.ExecRequest,
) (*opened, error) {
	s.begun++ // other commands may have been started since
	b := s.Box()
	if b == nil {
		return nil, fault.New(fault.NotFound, "exec %s has exited, and its result was collected or lost", req.Attach).
			WithHint("its changes are in the history: coppice log %s", rec.Name)
	}
	c := r.c.Register.foundAgain(rec.ID, req.Attach, time.Time{})
	req.ID = ""
	session, err := b.Exec(ctx, req)
	if err != nil {
		return nil, err
	}
	return &opened{command: c, place: s.at, box: b, session: session}, nil
}

// attachRun connects a client to the supervised command, over all its starts, until the command has exited and is not
// started again, or the client has disconnected, which leaves the command running. c is the running start; nil: none.
func (r *Runner) attachRun(
	ctx context.Context, p *place, rec *meta.Sandbox, c *command, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	last := rec.Run
	switch {
	case c == nil && last == nil:
		return wire.Exit{}, fault.New(fault.NotFound, "sandbox %s has no supervised command", rec.Name).
			WithHint("start one: coppice run --in %s -- CMD", rec.Name)
	case c == nil && last.Exit != nil && req.Attach == last.Exec:
		return *last.Exit, nil // the command exited while the client was disconnected
	case c == nil:
		return wire.Exit{}, fault.New(fault.NotFound, "the command of sandbox %s has exited", rec.Name).
			WithHint("its changes are in the history: coppice log %s; start it again: coppice run --in %s -- CMD",
				rec.Name, rec.Name)
	}
	if req.Attach != wire.AttachRun && req.Attach != c.id {
		req.Offset = 0 // the client counted the bytes of an earlier start
	}
	return r.stay(ctx, p, c, nil, req, stream)
}

// stay carries frames between a client and a command that the Runner follows, until the command has exited and its
// changes are captured, or the client has disconnected. For a supervised command it does so over all starts from c
// on. session is connected to c; nil: not yet.
func (r *Runner) stay(
	ctx context.Context, p *place, c *command, session io.ReadWriteCloser, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	req.ID = c.id
	if req.Attach == wire.AttachRun {
		req.Attach = c.id
	}
	left, err := r.attended(ctx, p.id, req)
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
			if session, err = r.reach(ctx, p, c, req); err != nil {
				return wire.Exit{}, err
			}
		}
		if session != nil {
			if err := carry(ctx, session, a); err != nil {
				return wire.Exit{}, err
			}
		}
		select {
		case <-c.done:
		case <-a.gone:
			return wire.Exit{}, errDetached
		case <-ctx.Done():
			return wire.Exit{}, daemonStops(ctx)
		}
		if c.next == nil {
			return c.exit, c.err
		}
		c, session = c.next, nil
		req.Offset, req.Size = 0, a.lastSize()
	}
}

// errDetached is returned when the client disconnected.
var errDetached = fault.New(fault.Cancelled, "detached")

// reach attaches to one start of the command. It returns nil if that start has exited.
func (r *Runner) reach(ctx context.Context, p *place, c *command, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	s, err := r.lock(ctx, p, "attaching")
	if err != nil {
		return nil, err
	}
	b := s.Box()
	s.unlock()
	if b == nil {
		return nil, nil // command.done has the result
	}
	session, err := b.Exec(ctx, wire.ExecRequest{
		Attach: c.id, Offset: req.Offset, ReadOnly: req.ReadOnly, Size: req.Size,
	})
	if fault.Is(err, fault.Unavailable) {
		return nil, nil
	}
	return session, err
}

// carry sends the frames of one start of the command to the client, and those of the client to it, until that start
// has exited or the client has disconnected. It closes the session.
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
			return nil // the keeper exited; command.done has the result of the command
		case t == wire.FrameExit:
			return nil
		case t == wire.FrameFailed:
			if err := decodeFailure(p); !fault.Is(err, fault.NotFound) { // the command may just have exited
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
