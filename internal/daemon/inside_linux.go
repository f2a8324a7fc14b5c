package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// inside is a listener within the daemon. A server of another protocol uses it to call the API on behalf of a
// principal, with exactly that principal's rights at the time of each call.
type inside struct {
	tokens *auth.Tokens
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	open map[*callerConn]bool // connections with a token; guarded by mu
}

func newInside(tokens *auth.Tokens) *inside {
	return &inside{tokens: tokens, conns: make(chan net.Conn), closed: make(chan struct{}), open: map[*callerConn]bool{}}
}

// callerConn is the API's end of a connection.
type callerConn struct {
	net.Conn
	in     *inside
	who    auth.Principal // guarded by in.mu until the connection is accepted
	expiry *time.Timer    // nil: never
}

// Close closes the connection. It may be called again.
func (c *callerConn) Close() error {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.in.mu.Lock()
	delete(c.in.open, c)
	c.in.mu.Unlock()
	return c.Conn.Close()
}

// client returns a client that calls as who. Its connections are not reused, and end with who's token. Each gets
// the token's current rights, so that new forks are visible at once.
func (in *inside) client(who auth.Principal) *client.Client {
	return client.New(client.Options{Dial: func(ctx context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		c, err := in.admit(ctx, theirs, who)
		if err != nil {
			return nil, &client.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
		}
		select {
		case in.conns <- c:
			return ours, nil
		case <-in.closed:
			err = net.ErrClosed
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		_ = c.Close() // closing a pipe never fails
		return nil, err
	}})
}

// admit creates a connection with the current rights of who.
func (in *inside) admit(ctx context.Context, end net.Conn, who auth.Principal) (*callerConn, error) {
	c := &callerConn{Conn: end, in: in, who: who}
	if who.TokenID == "" {
		return c, nil
	}
	in.mu.Lock()
	in.open[c] = true // before the check: a revocation from now on closes it
	in.mu.Unlock()
	tok, err := in.tokens.Good(ctx, who.TokenID)
	if err != nil {
		_ = c.Close() // closing a pipe never fails
		return nil, err
	}
	in.mu.Lock()
	c.who = tok.Principal()
	in.mu.Unlock()
	if !tok.Expires.IsZero() {
		c.expiry = time.AfterFunc(time.Until(tok.Expires), func() { _ = end.Close() })
	}
	return c, nil
}

// drop ends the connections of a revoked token.
func (in *inside) drop(tokenID string) {
	in.mu.Lock()
	var gone []*callerConn
	for c := range in.open {
		if c.who.TokenID == tokenID {
			gone = append(gone, c)
		}
	}
	in.mu.Unlock()
	for _, c := range gone {
		_ = c.Conn.Close() // closing a pipe never fails
	}
}

// Accept implements net.Listener.
func (in *inside) Accept() (net.Conn, error) {
	select {
	case c := <-in.conns:
		return c, nil
	case <-in.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (in *inside) Close() error {
	in.once.Do(func() { close(in.closed) })
	return nil
}

// Addr implements net.Listener.
func (in *inside) Addr() net.Addr { return insideAddr{} }

type insideAddr struct{}

func (insideAddr) Network() string { return "inside" }
func (insideAddr) String() string  { return "inside" }

// server returns a server of the API for the listener.
func (in *inside) server(api http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: api, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return auth.With(ctx, c.(*callerConn).who)
		}}
}
