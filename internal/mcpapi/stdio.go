package mcpapi

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hangUpGrace is the time for calls to finish after the end of the input: a client that pipes in a few requests
// receives its answers.
const hangUpGrace = time.Second

// Serve serves the protocol on in and out until in or ctx ends. Calls in progress are cancelled then, but not
// before hangUpGrace after the end of in. They have ended when Serve returns.
func Serve(ctx context.Context, opt Options, in io.ReadCloser, out io.Writer) error {
	err := newServer(opt).Run(ctx, patient{&mcp.IOTransport{Reader: in, Writer: keepOpen{out}}})
	if hungUp(ctx, err) {
		err = nil
	}
	return err
}

// hungUp reports whether the session ended normally.
func hungUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe)
}

// keepOpen is a writer that ignores Close: its owner closes it.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// patient is a transport that, at the end of its input, waits until all calls are answered, or for hangUpGrace.
type patient struct{ mcp.Transport }

func (p patient) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := p.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &patientConn{Connection: c, answered: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

type patientConn struct {
	mcp.Connection
	answered chan struct{} // receives a value when a call was answered
	closed   chan struct{}
	once     sync.Once

	mu   sync.Mutex
	open map[jsonrpc.ID]bool // guarded by mu: unanswered calls
}

func (c *patientConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil {
		c.wait(ctx)
		return m, err
	}
	if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open == nil {
			c.open = map[jsonrpc.ID]bool{}
		}
		c.open[r.ID] = true
	}
	return m, nil
}

func (c *patientConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.open, r.ID)
		c.mu.Unlock()
		select {
		case c.answered <- struct{}{}:
		default:
		}
	}
	return err
}

func (c *patientConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}

// wait returns when all calls are answered, the time is up, the connection is closed, or ctx ends.
func (c *patientConn) wait(ctx context.Context) {
	late := time.NewTimer(hangUpGrace)
	defer late.Stop()
	for c.waiting() {
		select {
		case <-c.answered:
		case <-late.C:
			return
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *patientConn) waiting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) > 0
}
