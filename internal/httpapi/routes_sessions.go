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
	// tokenLife is how long a token for a terminal can be used.
	tokenLife = time.Minute
	// maxTokens is how many may wait to be used, in all, and maxOwnTokens of them
	// for one caller.
	maxTokens    = 1024
	maxOwnTokens = 64
	// maxMessage is the largest message that a terminal's client may send, in bytes.
	maxMessage = 64 << 10
	// pingEvery is how often is looked whether a terminal's client is there, and
	// pongWithin how long it may take to say so, or to take what it is sent.
	pingEvery  = 30 * time.Second
	pongWithin = 20 * time.Second
)

// A session's id is made of those of its sandbox and its command, so that nothing
// need be remembered of it.
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

// ticket is a token that waits to be used.
type ticket struct {
	session  string
	readOnly bool
	caller   string            // the bearer token of who asked; "" is the owner
	sum      [sha256.Size]byte // of the token
	expires  time.Time
}

// sessions are the tokens for terminals. They are gone with the daemon.
type sessions struct {
	mu      sync.Mutex
	tickets []ticket // guarded by mu
}

// issue makes a token for a caller.
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

// redeem takes a token away; false when there is none such for the session, or it
// has expired. It takes the same time wherever a token is wrong.
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

// sweep drops what has expired. s.mu is held.
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

// addSessions adds terminals.
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
	// Who was let in by a bearer token before goes when that does.
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
		return // it has answered
	}
	defer s.metrics.streaming()()
	conn.SetReadLimit(maxMessage)
	ctx, cancel := s.bounded(context.WithoutCancel(r.Context())) // a hijacked request's own tells nothing
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

// terminal is what the engine sees of a terminal at the other end of a WebSocket.
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

// receive makes frames of what the client sends.
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

// control makes frames of a text message; what is none of ours is ignored: a newer
// client may send it.
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

// ping finds out that a client is gone which did not say so.
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
			_ = t.conn.CloseNow() // receive ends, and so does everything
			return
		}
	}
}

// Read implements io.Reader.
func (t *terminal) Read(p []byte) (int, error) { return t.in.Read(p) }

// SetReadDeadline ends Read: the engine sets none but one that has passed.
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

// send gives up on a client that does not take what it is sent.
func (t *terminal) send(kind websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), pongWithin)
	defer cancel()
	return t.conn.Write(ctx, kind, p)
}

// end lets go of the connection, and waits until nobody uses it.
func (t *terminal) end() {
	t.in.Close()
	t.stop()
	_ = t.conn.CloseNow() // it may be closed
	t.work.Wait()
}
