package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Protocol is the name of exec streams in the Upgrade header.
const Protocol = "coppice-frames"

// firstFrame is the timeout of the first frame of an upgraded connection.
const firstFrame = 30 * time.Second

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n"

// Running is the input of an operation on one command.
type Running struct {
	Named
	Exec string `path:"exec" doc:"id of the command"`
}

// addExec adds the operations on commands.
func (s *Server) addExec(api huma.API) {
	exec := func(method, path, id, summary string, scope auth.Scope) huma.Operation {
		return operation(method, box+path, id, summary, tagExec, scope)
	}
	s.addStart(api)
	plain(s, api,
		replayable(created(
			exec("POST", "/run", "run", "Start the supervised command with automatic snapshots", auth.Operate))),
		func(ctx context.Context, in *sent[wire.RunRequest]) (wire.Run, error) {
			return s.opt.Commands.Run(ctx, in.Name, in.Body)
		})
	plain(s, api, exec("GET", "/execs", "listExecs", "List running commands, oldest first", auth.Read),
		func(ctx context.Context, in *Named) (wire.ExecsResult, error) {
			all, err := s.opt.Commands.Execs(ctx, in.Name)
			return wire.ExecsResult{Execs: all}, err
		})

	out := streams(
		exec("GET", "/execs/{exec}/output", "execOutput",
			"Read the output of a running or recently exited command from an offset", auth.Read))
	describeOutput(api, &out)
	raw(s, api, out, s.execOutput)

	in := exec("POST", "/execs/{exec}/stdin", "execInput", "Send input to a command",
		auth.Operate)
	answers(&in, http.StatusNoContent, "", "all input was accepted", nil)
	in.DefaultStatus = http.StatusNoContent
	raw(s, api, in, func(in *struct {
		Running
		EOF bool `query:"eof" doc:"close the input after this"`
	}, w http.ResponseWriter, r *http.Request) {
		if err := s.opt.Commands.InputExec(r.Context(), in.Name, in.Exec, r.Body, in.EOF); err != nil {
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	takes(api, in, "the input", map[string]*huma.MediaType{asBytes: {Schema: binary()}})
	silent(s, api, exec("POST", "/execs/{exec}/signal", "signalExec", "Send a signal to a command", auth.Operate),
		func(ctx context.Context, in *struct {
			Running
			Body wire.Signal
		}) error {
			return s.opt.Commands.SignalExec(ctx, in.Name, in.Exec, in.Body.Name)
		})
	silent(s, api,
		exec("DELETE", "/execs/{exec}", "cancelExec", "Stop a command: SIGTERM, and SIGKILL after two seconds", auth.Operate),
		func(ctx context.Context, in *Running) error { return s.opt.Commands.CancelExec(ctx, in.Name, in.Exec) })
}

// execInput is the input of the operation that starts a command.
type execInput struct {
	Named
	PTY     bool   `query:"pty" doc:"start the command on a terminal and return a Session to attach to"`
	Upgrade string `header:"Upgrade" doc:"coppice-frames switches to frames in both directions; the request is the first"`
	Body    *wire.ExecRequest
}

func (s *Server) addStart(api huma.API) {
	op := streams(
		operation("POST", box+"/exec", "exec", "Run a command and capture its changes", tagExec, auth.Operate))
	describeOutput(api, &op)
	answers(&op, http.StatusCreated, asJSON, "with pty, the session", schemaOf[wire.Session](api))
	answers(&op, http.StatusSwitchingProtocols, "", "with Upgrade: "+Protocol+", frames in both directions", nil)
	answers(&op, http.StatusUpgradeRequired, asProblem, "neither a request nor an upgrade was sent",
		schemaOf[problemDocument](api))
	raw(s, api, op, func(in *execInput, w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.EqualFold(in.Upgrade, Protocol):
			s.execFrames(in.Name, w, r)
		case in.Body == nil:
			w.Header().Set("Upgrade", Protocol)
			w.Header().Set("Connection", "Upgrade")
			sendProblem(w, wire.Problem{Type: "about:blank", Title: http.StatusText(http.StatusUpgradeRequired),
				Status: http.StatusUpgradeRequired, Detail: "exec requires a JSON request or an " +
					"upgrade", Kind: string(fault.Invalid),
				Hint: "send an ExecRequest as JSON, or the header Upgrade: " + Protocol})
		case in.PTY:
			v, err := s.startSession(r.Context(), in.Name, *in.Body)
			s.sendJSON(w, r, http.StatusCreated, &v, err)
		default:
			s.execEvents(in.Name, *in.Body, w, r)
		}
	})
}

// describeOutput documents the stream of a command's events.
func describeOutput(api huma.API, op *huma.Operation) {
	answers(op, http.StatusOK, asEvents,
		"Server-Sent Events: started (Started), stdout and stderr (Output), dropped (Dropped) and, last, exit "+
			"(Exit) or error (Problem). "+
			"The id of each is the output offset after it; sent as Last-Event-ID, it resumes the output there.",
		&huma.Schema{
			OneOf: []*huma.Schema{schemaOf[wire.Started](api), schemaOf[wire.Output](api), schemaOf[wire.Dropped](api),
				schemaOf[wire.Exit](api), schemaOf[problemDocument](api)}})
}

// execFrames upgrades the connection and passes its frames to the engine. Errors after the upgrade are Failed
// frames.
func (s *Server) execFrames(name string, w http.ResponseWriter, r *http.Request) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.fail(w, r, fault.Wrap(err, "upgrade the connection"))
		return
	}
	defer s.metrics.streaming()()
	defer conn.Close()
	if _, err := io.WriteString(conn, switching); err != nil {
		return
	}
	st := &duplex{Conn: conn, r: buf.Reader}
	exit, err := s.run(st, name)
	switch {
	case errors.Is(err, errGone):
	case err != nil && s.opt.Base.Err() != nil:
		// The daemon stops and the command continues: the client sees a lost connection, and attaches again to
		// the next daemon.
	case err != nil:
		_ = wire.WriteJSON(conn, wire.FrameFailed, s.wireError(r.Method+" "+r.URL.Path, err)) // the client may be gone
	default:
		_ = wire.WriteJSON(conn, wire.FrameExit, exit) // the client may be gone; it can attach again
	}
}

func (s *Server) run(st *duplex, name string) (wire.Exit, error) {
	_ = st.SetReadDeadline(time.Now().Add(firstFrame))
	t, payload, err := wire.ReadFrame(st, nil)
	if err != nil {
		return wire.Exit{}, errGone
	}
	_ = st.SetReadDeadline(time.Time{})
	var req wire.ExecRequest
	if t != wire.FrameRequest {
		return wire.Exit{}, fault.New(fault.Invalid, "invalid type %d of the first frame: must be the request", t)
	}
	if err := json.Unmarshal(payload, &req); err != nil {
		return wire.Exit{}, fault.New(fault.Invalid, "invalid JSON request").Because(err)
	}
	if req.Attach == "" && len(req.Cmd) == 0 && req.Run == nil {
		return wire.Exit{}, fault.New(fault.Invalid, "exec requires a command").WithHint("send \"cmd\", a list of arguments")
	}
	return s.opt.Commands.Exec(s.opt.Base, name, req, st)
}

// duplex is a hijacked connection whose first bytes may be in a buffer.
type duplex struct {
	net.Conn
	r *bufio.Reader
}

// Read implements io.Reader.
func (d *duplex) Read(p []byte) (int, error) { return d.r.Read(p) }

// WatchLoss calls lost if the client disconnects before stop is called. The connection must not be read meanwhile;
// input from the client is read afterwards.
func (d *duplex) WatchLoss(lost func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := d.r.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			lost()
		}
	}()
	return func() {
		_ = d.SetReadDeadline(time.Unix(1, 0)) // fails only for a closed connection
		<-done
		_ = d.SetReadDeadline(time.Time{})
	}
}

// execEvents runs a command and returns its output as events. The command continues when the client disconnects.
func (s *Server) execEvents(name string, req wire.ExecRequest, w http.ResponseWriter, r *http.Request) {
	req.Keep, req.Attach, req.Offset, req.ReadOnly, req.Run, req.ID = true, "", 0, false, nil, ""
	if len(req.Cmd) == 0 {
		s.fail(w, r, fault.New(fault.Invalid, "body.cmd: exec requires a command").
			WithHint("send \"cmd\", a list of arguments"))
		return
	}
	s.follow(name, req, w, r)
}

// execOutput returns the output of a command as events.
func (s *Server) execOutput(in *struct {
	Running
	Last     string `header:"Last-Event-ID" doc:"the id of the last event received"`
	Offset   int64  `query:"offset" doc:"the first byte; negative: that many before the end, from the start of a line"`
	ReadOnly bool   `query:"read_only" doc:"the command does not wait for this reader; late output is dropped"`
}, w http.ResponseWriter, r *http.Request) {
	offset, err := resumeAt(in.Last, in.Offset)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	// A caller without write access must not be able to block a command.
	watch := in.ReadOnly || auth.From(r.Context()).Check(auth.Operate, in.Name) != nil
	s.follow(in.Name, wire.ExecRequest{Attach: in.Exec, Keep: true, Offset: offset, ReadOnly: watch}, w, r)
}

// follow returns a command's frames as events, until the command exits or the client disconnects.
func (s *Server) follow(name string, req wire.ExecRequest, w http.ResponseWriter, r *http.Request) {
	defer s.metrics.streaming()()
	st := &eventStream{out: &sse{w: w}, ctx: r.Context(), ended: make(chan struct{}), want: req.Attach}
	stop := st.out.beat(r.Context())
	defer stop()
	exit, err := s.opt.Commands.Exec(s.opt.Base, name, req, st) //nolint:contextcheck // a command outlives its request
	if st.err != nil {
		err = st.err
	}
	switch {
	case err == nil:
		_ = st.exit(exit) // the client may be gone; it can ask again
	case !st.out.hasBegun():
		s.fail(w, r, err)
	case r.Context().Err() != nil, s.opt.Base.Err() != nil:
		// The command continues: the client sees a lost connection, and attaches again.
	default:
		_ = st.out.event("error", "", s.problem(r.Method+" "+r.URL.Path, err)) // the client may be gone
	}
}

// eventStream is the stream of a client that receives events: it sends nothing, and its end means that the client has
// disconnected.
type eventStream struct {
	out   *sse
	ctx   context.Context
	want  string // the requested command; "": the first to start
	ended chan struct{}
	once  sync.Once

	mu  sync.Mutex
	got output // guarded by mu
	err error  // failed write; guarded by mu until Exec has returned
}

// Read blocks until the client disconnects or the engine sets a deadline.
func (e *eventStream) Read([]byte) (int, error) {
	select {
	case <-e.ctx.Done():
	case <-e.ended:
	}
	return 0, errGone
}

// WatchLoss calls lost if the client disconnects before stop is called.
func (e *eventStream) WatchLoss(lost func()) (stop func()) {
	unhook := context.AfterFunc(e.ctx, lost)
	return func() { unhook() }
}

// SetReadDeadline ends Read: the engine only sets deadlines that have passed.
func (e *eventStream) SetReadDeadline(time.Time) error {
	e.once.Do(func() { close(e.ended) })
	return nil
}

// Write processes one frame.
func (e *eventStream) Write(frame []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	const head = 5
	if len(frame) < head {
		return 0, io.ErrShortWrite
	}
	p := frame[head:]
	var err error
	switch wire.FrameType(frame[0]) {
	case wire.FrameStarted:
		err = e.started(p)
	case wire.FrameStdout:
		err = e.got.take("stdout", p, e.give)
	case wire.FrameStderr:
		err = e.got.take("stderr", p, e.give)
	case wire.FrameDropped:
		err = e.dropped(p)
	}
	if err != nil {
		return 0, err
	}
	return len(frame), nil
}

// started processes a Started frame. e.mu is held.
func (e *eventStream) started(p []byte) error {
	var m wire.Started
	if err := json.Unmarshal(p, &m); err != nil {
		return err
	}
	if e.want != "" && e.want != wire.AttachRun && m.Exec != e.want {
		e.err = fault.New(fault.NotFound, "exec %s not found among the running "+
			"commands", e.want).WithHint("its changes are in the history: GET /v1/sandboxes/NAME/log")
		return e.err
	}
	e.got.skip(m.Offset)
	return e.out.event("started", strconv.FormatInt(m.Offset, 10), m)
}

// dropped processes a Dropped frame. e.mu is held.
func (e *eventStream) dropped(p []byte) error {
	var m wire.Dropped
	if err := json.Unmarshal(p, &m); err != nil {
		return err
	}
	if err := e.got.flush(e.give); err != nil {
		return err
	}
	e.got.skip(e.got.offset + m.Bytes)
	return e.out.event("dropped", strconv.FormatInt(e.got.offset, 10), m)
}

func (e *eventStream) give(name string, offset int64, out wire.Output) error {
	return e.out.event(name, strconv.FormatInt(offset, 10), out)
}

// exit sends the last event.
func (e *eventStream) exit(x wire.Exit) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.got.flush(e.give); err != nil {
		return err
	}
	return e.out.event("exit", strconv.FormatInt(e.got.offset, 10), x)
}
