//go:build linux

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
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
func (e *Engine) attended(ctx context.Context, s *sandbox, req wire.ExecRequest) (left func(), err error) {
	if req.ReadOnly {
		return func() {}, nil
	}
	rec, err := e.DB.Sandbox(context.WithoutCancel(ctx), string(s.id))
	if err == nil {
		err = e.record(ctx, &rec, e.sessionRecord(ctx, "attached", req))
	}
	return func() { e.left(ctx, s, req) }, err
}

// sessionRecord tells that somebody came to a command, or left it.
func (e *Engine) sessionRecord(ctx context.Context, event string, req wire.ExecRequest) testimony {
	by := e.cleaners.Formats().RecordText(e.Caller(ctx))
	return testimony{format.ByDaemon, &format.Session{By: by, Event: event, Exec: cmp.Or(req.Attach, req.ID)}}
}

// left records that somebody left a command.
func (e *Engine) left(ctx context.Context, s *sandbox, req wire.ExecRequest) {
	ctx = context.WithoutCancel(ctx)
	if rec, err := e.DB.Sandbox(ctx, string(s.id)); err == nil { // else it was removed
		e.note(ctx, &rec, e.sessionRecord(ctx, "left", req))
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
