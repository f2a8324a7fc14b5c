package httpapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// tokenLife is the lifetime of a token for a terminal.
	tokenLife = time.Minute
	// maxTokens is the maximum number of unused tokens, and maxOwnTokens that of one caller.
	maxTokens    = 1024
	maxOwnTokens = 64
	// maxMessage is the largest message that a terminal's client may send, in bytes.
	maxMessage = 64 << 10
	// pingEvery is the interval of pings to a terminal's client. pongWithin is its timeout for the answer, and
	// for each message that it is sent.
	pingEvery  = 30 * time.Second
	pongWithin = 20 * time.Second
)

// sessionMark joins the IDs of the sandbox and the command to the ID of a session, so that sessions need no
// state.
const sessionMark = "."

func sessionID(sandbox, exec string) string { return sandbox + sessionMark + exec }

func parseSession(id string) (sandbox, exec string, err error) {
	sandbox, exec, ok := strings.Cut(id, sessionMark)
	if !ok || sandbox == "" || exec == "" || strings.Contains(exec, sessionMark) {
		return "", "", fault.New(fault.NotFound, "session %q not found", shorten(id)).
			WithHint("start one with: POST /v1/sandboxes/NAME/exec?pty=true")
	}
	return sandbox, exec, nil
}

// ticket is an unused token.
type ticket struct {
	session  string
	readOnly bool
	caller   string            // the bearer token of the client that requested it; "" is the owner
	sum      [sha256.Size]byte // of the token
	expires  time.Time
}

// sessions are the unused tokens for terminals. They exist only in memory.
type sessions struct {
	mu      sync.Mutex
	tickets []ticket // guarded by mu
}

// issue creates a token for a caller.
func (s *sessions) issue(
	session, caller string, readOnly bool, now time.Time,
) (token string, expires time.Time, err error) {
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return "", expires, fault.Wrap(err, "create a token")
	}
	token = base64.RawURLEncoding.EncodeToString(secret[:])
	expires = now.Add(tokenLife)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	own := 0
	for i := range s.tickets {
		if s.tickets[i].caller == caller {
			own++
		}
	}
	if len(s.tickets) >= maxTokens || own >= maxOwnTokens {
		return "", expires,
			fault.New(fault.Conflict, "too many unused tokens: %d, of which this caller has %d", len(s.tickets), own).
				WithHint("use them, or wait a minute")
	}
	s.tickets = append(s.tickets, ticket{session, readOnly, caller, sha256.Sum256([]byte(token)), expires})
	return token, expires, nil
}

// redeem removes a token and returns it. ok is false if the session has no such token, or the token has expired.
// The comparison takes constant time.
func (s *sessions) redeem(session, token string, now time.Time) (t ticket, ok bool) {
	sum := sha256.Sum256([]byte(token))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	found := -1
	for i := range s.tickets {
		if subtle.ConstantTimeCompare(s.tickets[i].sum[:], sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 || s.tickets[found].session != session {
		return ticket{}, false
	}
	t = s.tickets[found]
	s.tickets = slices.Delete(s.tickets, found, found+1)
	return t, true
}

// sweep removes expired tokens. s.mu is held.
func (s *sessions) sweep(now time.Time) {
	s.tickets = slices.DeleteFunc(s.tickets, func(t ticket) bool { return !now.Before(t.expires) })
}

// startSession starts a command on a terminal.
func (s *Server) startSession(ctx context.Context, name string, req wire.ExecRequest) (wire.Session, error) {
	sb, err := s.opt.Sandboxes.Sandbox(ctx, name)
	if err != nil {
		return wire.Session{}, err
	}
	req.TTY, req.Stdin, req.Keep = true, true, true
	req.Attach, req.Offset, req.ReadOnly, req.Run, req.ID = "", 0, false, nil, ""
	x, err := s.opt.Commands.StartExec(ctx, sb.ID, req)
	if err == nil && x.Exit != nil {
		err = fault.New(fault.Invalid, "cannot start the command: %s", x.Exit.Message).
			WithHint("list the programs of the sandbox: ls /usr/bin")
	}
	return wire.Session{ID: sessionID(sb.ID, x.ID), Exec: x.ID, Sandbox: sb.ID}, err
}

// addSessions adds the operations on terminals.
func (s *Server) addSessions(api huma.API) {
	ask := each(operation("POST", "/v1/sessions/{id}/attach", "attachSession",
		"Create a token to attach to a session, once, within a minute", tagExec, auth.Read))
	answers(&ask, http.StatusOK, asJSON, "the address and the token to attach with", schemaOf[wire.AttachResult](api))
	raw(s, api, ask, func(in *struct {
		ID   string `path:"id" doc:"id of the session"`
		Body *wire.AttachRequest
	}, w http.ResponseWriter, r *http.Request) {
		v, err := s.issue(r, in.ID, orZero(in.Body))
		s.sendJSON(w, r, http.StatusOK, &v, err)
	})

	op := streams(operation("GET", "/v1/attach/{session}", "attach", "Attach to a session by WebSocket", tagExec, 0))
	answers(&op, http.StatusSwitchingProtocols, "", "a WebSocket", nil)
	answers(&op, http.StatusForbidden, asProblem,
		"the token is invalid, used or expired, or the Origin is not allowed", schemaOf[problemDocument](api))
	schemaOf[wire.TerminalControl](api)
	raw(s, api, op, func(in *struct {
		Session string `path:"session" doc:"id of the session"`
		Token   string `query:"token" doc:"a token from attachSession"`
	}, w http.ResponseWriter, r *http.Request) {
		s.attach(in.Session, in.Token, w, r)
	})
}

func (s *Server) issue(r *http.Request, id string, req wire.AttachRequest) (wire.AttachResult, error) {
	ctx := r.Context()
	sandbox, exec, err := parseSession(id)
	if err != nil {
		return wire.AttachResult{}, err
	}
	need := auth.Operate
	if req.ReadOnly {
		need = auth.Read
	}
	if sandbox, err = s.reach(ctx, need, sandbox); err != nil {
		return wire.AttachResult{}, err
	}
	all, err := s.opt.Commands.Execs(ctx, sandbox)
	if err != nil {
		return wire.AttachResult{}, err
	}
	if !slices.ContainsFunc(all, func(x wire.ExecInfo) bool { return x.ID == exec && x.TTY && (x.Kept || x.Supervised) }) {
		return wire.AttachResult{}, fault.New(fault.NotFound, "session %s has ended", id).
			WithHint("start one with: POST /v1/sandboxes/NAME/exec?pty=true")
	}
	token, expires, err := s.sessions.issue(id, auth.From(ctx).TokenID, req.ReadOnly, time.Now())
	if err != nil {
		return wire.AttachResult{}, err
	}
	scheme := "ws"
	if r.TLS != nil {
		scheme = "wss"
	}
	u := url.URL{Scheme: scheme, Host: r.Host, Path: "/v1/attach/" + id, RawQuery: url.Values{"token": {token}}.Encode()}
	return wire.AttachResult{URL: u.String(), Token: token, Expires: expires.UTC()}, nil
}

// attach connects a WebSocket to a session.
func (s *Server) attach(id, token string, w http.ResponseWriter, r *http.Request) {
	sandbox, exec, err := parseSession(id)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	t, ok := s.sessions.redeem(id, token, time.Now())
	if !ok {
		s.fail(w, r, fault.New(fault.Denied, "the token belongs to another session, was used or has expired").
			WithHint("create another one with: POST /v1/sessions/%s/attach", id))
		return
	}
	// A session that a bearer token created ends when that token is revoked.
	who, done, err := auth.As(r.Context(), t.caller)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	s.terminal(sandbox, exec, t.readOnly, w, r.WithContext(who))
}

// terminal connects a WebSocket to a command.
func (s *Server) terminal(sandbox, exec string, readOnly bool, w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{OriginPatterns: s.opt.Origins})
	if err != nil {
		return // Accept has answered
	}
	defer s.metrics.streaming()()
	conn.SetReadLimit(maxMessage)
	ctx, cancel := s.bounded(context.WithoutCancel(r.Context())) // it does not end with a hijacked connection
	defer cancel()
	t := newTerminal(ctx, conn)
	req := wire.ExecRequest{Attach: exec, Keep: true, ReadOnly: readOnly, TTY: true}
	exit, err := s.opt.Commands.Exec(s.opt.Base, sandbox, req, t) //nolint:contextcheck // a command outlives its request
	defer t.end()
	last := wire.TerminalControl{Exit: &exit}
	switch {
	case err != nil && s.opt.Base.Err() != nil:
		_ = conn.Close(websocket.StatusGoingAway, "the daemon is stopping; the command continues") // the client may be gone
		return
	case err != nil:
		e := s.wireError(r.Method+" /v1/attach", err)
		last = wire.TerminalControl{Error: &e}
	}
	if t.tell(last) == nil { //nolint:contextcheck // it is told whatever has ended
		_ = conn.Close(websocket.StatusNormalClosure, "") // the client may be gone
	}
}

// terminal is the engine's view of a terminal behind a WebSocket.
type terminal struct {
	ctx  context.Context
	stop context.CancelFunc
	conn *websocket.Conn
	in   *io.PipeReader // frames of the client
	work sync.WaitGroup
}

func newTerminal(ctx context.Context, conn *websocket.Conn) *terminal {
	t := &terminal{conn: conn}
	t.ctx, t.stop = context.WithCancel(ctx)
	var frames *io.PipeWriter
	t.in, frames = io.Pipe()
	t.work.Go(func() { _ = frames.CloseWithError(t.receive(frames)) })
	t.work.Go(t.ping)
	return t
}

// receive converts the client's messages to frames.
func (t *terminal) receive(frames io.Writer) error {
	for {
		kind, p, err := t.conn.Read(t.ctx)
		if err != nil {
			return errGone
		}
		if kind == websocket.MessageBinary {
			err = wire.WriteFrame(frames, wire.FrameStdin, p)
		} else {
			err = control(frames, p)
		}
		if err != nil {
			return err
		}
	}
}

// control converts a text message to frames. It ignores unknown fields, which a newer client may send.
func control(frames io.Writer, p []byte) error {
	var c wire.TerminalControl
	_ = json.Unmarshal(p, &c)
	var errs []error
	if c.Resize != nil {
		errs = append(errs, wire.WriteJSON(frames, wire.FrameResize, c.Resize))
	}
	if c.Signal != "" {
		errs = append(errs, wire.WriteJSON(frames, wire.FrameSignal, wire.Signal{Name: c.Signal}))
	}
	return errors.Join(errs...)
}

// ping closes the connection if the client does not answer.
func (t *terminal) ping() {
	every := time.NewTicker(pingEvery)
	defer every.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-every.C:
		}
		ctx, cancel := context.WithTimeout(t.ctx, pongWithin)
		err := t.conn.Ping(ctx)
		cancel()
		if err != nil {
			_ = t.conn.CloseNow() // receive fails, which ends everything
			return
		}
	}
}

// Read implements io.Reader.
func (t *terminal) Read(p []byte) (int, error) { return t.in.Read(p) }

// SetReadDeadline ends Read: the engine only sets deadlines that have passed.
func (t *terminal) SetReadDeadline(time.Time) error { return t.in.CloseWithError(errGone) }

// Write processes one frame.
func (t *terminal) Write(frame []byte) (int, error) {
	const head = 5
	if len(frame) < head {
		return 0, io.ErrShortWrite
	}
	var err error
	switch p := frame[head:]; wire.FrameType(frame[0]) {
	case wire.FrameStdout, wire.FrameStderr:
		err = t.send(websocket.MessageBinary, p)
	case wire.FrameDropped:
		var m wire.Dropped
		if err = json.Unmarshal(p, &m); err == nil {
			err = t.tell(wire.TerminalControl{Dropped: &m})
		}
	}
	if err != nil {
		return 0, err
	}
	return len(frame), nil
}

func (t *terminal) tell(c wire.TerminalControl) error {
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return t.send(websocket.MessageText, b)
}

// send closes the connection to a client that does not read in time.
func (t *terminal) send(kind websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), pongWithin)
	defer cancel()
	return t.conn.Write(ctx, kind, p)
}

// end closes the connection, and waits until no goroutine uses it.
func (t *terminal) end() {
	t.in.Close()
	t.stop()
	_ = t.conn.CloseNow() // it may be closed
	t.work.Wait()
}
