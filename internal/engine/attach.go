//go:build linux

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// attachment is a client's connection to a supervised command. What the client
// sends goes to the start of the command that runs at the moment. Between two of
// them input waits for the next, and the client with it; signals are lost.
type attachment struct {
	stream io.ReadWriter
	gone   chan struct{} // closed when the client went away
	input  sync.WaitGroup

	mu        sync.Mutex
	connected sync.Cond      // session is another, or over is set
	session   io.WriteCloser // nil: none
	turn      int            // counts sessions
	over      bool           // by close, or since the client went away
	size      *wire.Size     // of the client's terminal
}

// newAttachment begins to read what the client sends, until close. It goes to
// session from the first frame on: a client that was told that the command runs may
// have typed already. Nil is for a client that was not told yet.
func newAttachment(stream io.ReadWriter, session io.WriteCloser, req wire.ExecRequest) *attachment {
	a := &attachment{stream: stream, session: session, gone: make(chan struct{}), size: req.Size}
	a.connected.L = &a.mu
	a.input.Go(a.read)
	return a
}

// attended records that somebody came to a command, and with left that they left it. Who
// only looks on is not recorded.
func (e *Engine) attended(ctx context.Context, s *entry, req wire.ExecRequest) (left func(), err error) {
	if req.ReadOnly {
		return func() {}, nil
	}
	rec, err := e.DB.Sandbox(context.WithoutCancel(ctx), string(s.ID))
	if err == nil {
		err = e.Book.Record(ctx, &rec, e.sessionRecord(ctx, "attached", req))
	}
	return func() { e.left(ctx, s, req) }, err
}

// sessionRecord tells that somebody came to a command, or left it.
func (e *Engine) sessionRecord(ctx context.Context, event string, req wire.ExecRequest) audit.Statement {
	by := e.cleaners.Formats().RecordText(e.Caller(ctx))
	return audit.Statement{
		By: format.ByDaemon, Body: &format.Session{By: by, Event: event, Exec: cmp.Or(req.Attach, req.ID)},
	}
}

// left records that somebody left a command.
func (e *Engine) left(ctx context.Context, s *entry, req wire.ExecRequest) {
	ctx = context.WithoutCancel(ctx)
	if rec, err := e.DB.Sandbox(ctx, string(s.ID)); err == nil { // else it was removed
		e.Book.Note(ctx, &rec, e.sessionRecord(ctx, "left", req))
	}
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

// leave notes that the client went away, which is seen when it is read from, or written to
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

// end lets no input wait any more. a.mu is held.
func (a *attachment) end() {
	a.over = true
	a.connected.Broadcast()
}

// deliver sends a frame to the start of the command that runs. If that start ends before it
// has taken the frame, input goes to the next start: a checkout may return before the daemon
// is connected to the command that goes on, and input typed then must not be lost. Signals
// and sizes are dropped.
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

// connect says where the client's frames go from now on; nil is nowhere. It
// reports whether the client is there.
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
		_ = s.SetReadDeadline(time.Unix(1, 0)) // a closed one needs none
	}
	a.input.Wait()
}

// stay carries frames between a client and a command that the daemon follows, until that has
// ended and is captured, or the client has gone: over all starts of a supervised one from c on.
// session is connected to c; nil: not yet.
func (e *Engine) stay(
	ctx context.Context, s *entry, c *command, session io.ReadWriteCloser, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	req.ID = c.id
	if req.Attach == wire.AttachRun {
		req.Attach = c.id
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
			if session, err = e.reach(ctx, s, c, req); err != nil {
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
			return wire.Exit{}, fault.New(fault.Unavailable, "the daemon is stopping; the command runs on").
				Because(context.Cause(ctx))
		}
		if c.next == nil {
			return c.exit, c.err
		}
		c, session = c.next, nil
		req.Offset, req.Size = 0, a.lastSize()
	}
}

// errDetached says that the client went away, to which there is nothing to add.
var errDetached = fault.New(fault.Cancelled, "detached")

// reach attaches to one start of the command; nil when that has ended.
func (e *Engine) reach(
	ctx context.Context, sbx *entry, c *command, req wire.ExecRequest,
) (io.ReadWriteCloser, error) {
	s, err := e.lock(ctx, sbx, "attaching")
	if err != nil {
		return nil, err
	}
	b := e.liveBox(s)
	s.unlock(e)
	if b == nil {
		return nil, nil // what becomes of it is told by command.done
	}
	session, err := b.Exec(ctx, wire.ExecRequest{
		Attach: c.id, Offset: req.Offset, ReadOnly: req.ReadOnly, Size: req.Size,
	})
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
			return nil // its keeper ended; what becomes of the command is told by command.done
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
