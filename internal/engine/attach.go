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
// sends goes to the start of the command that runs at the moment; between two of
// them it is thrown away.
type attachment struct {
	stream io.ReadWriter
	gone   chan struct{} // closed when the client went away
	input  sync.WaitGroup

	mu      sync.Mutex
	session io.WriteCloser // nil: none
	size    *wire.Size     // of the client's terminal
}

// newAttachment begins to read what the client sends, until close. It goes to
// session from the first frame on: a client that was told that the command runs may
// have typed already. Nil is for a client that was not told yet.
func newAttachment(stream io.ReadWriter, session io.WriteCloser, req wire.ExecRequest) *attachment {
	a := &attachment{stream: stream, session: session, gone: make(chan struct{}), size: req.Size}
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
	return testimony{format.ByDaemon, &format.Session{By: e.clean(e.Caller(ctx)), Event: event, Exec: cmp.Or(req.Attach, req.ID)}}
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
		a.mu.Lock()
		if err != nil {
			close(a.gone)
			if a.session != nil {
				a.session.Close()
			}
			a.mu.Unlock()
			return
		}
		var size wire.Size
		if t == wire.FrameResize && json.Unmarshal(p, &size) == nil {
			a.size = &size
		}
		session := a.session
		a.mu.Unlock()
		if session != nil {
			_ = wire.WriteFrame(session, t, p) // lost with the command that it was for
		}
	}
}

// connect says where the client's frames go from now on; nil is nowhere. It
// reports whether the client is there.
func (a *attachment) connect(session io.WriteCloser) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = session
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
	if s, ok := a.stream.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = s.SetReadDeadline(time.Unix(1, 0)) // a closed one needs none
	}
	a.input.Wait()
}
