package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Streams connects an exec to the caller. Nil fields are unused.
type Streams struct {
	// Stdin is sent until its end; set it together with ExecRequest.Stdin. A Read that never returns leaks its
	// goroutine when Exec returns.
	Stdin io.Reader
	// Stdout and Stderr receive the output, from one goroutine. If writing to Stdout fails, the command is sent
	// SIGPIPE and the rest of its stdout is discarded; Exec still waits for it to exit.
	Stdout, Stderr io.Writer
	// Resize and Signals are forwarded while the command runs.
	Resize  <-chan wire.Size
	Signals <-chan string // "INT", "TERM"
	// Started is called once, when the command runs.
	Started func(wire.Started)
	// Lost is called with the cause when the connection is lost, and with nil when it is restored.
	Lost func(error)
	// Dropped is called with the number of bytes of output that were lost.
	Dropped func(int64)
	// Restarted is called when the supervised command was restarted.
	Restarted func()
}

// RunAttached is Run and Attach in one call, so that no output is missed.
func (c *Client) RunAttached(ctx context.Context, name string, req wire.RunRequest, st Streams) (wire.Exit, error) {
	return c.Exec(ctx, name, wire.ExecRequest{Run: &req, Stdin: req.Stdin, TTY: req.TTY, Size: req.Size}, st)
}

// Attachment configures Attach.
type Attachment struct {
	ReadOnly bool       // send no input, and never make the command wait for this reader
	Stdin    bool       // send Streams.Stdin
	TTY      bool       // the command has a terminal, and so does the client
	Size     *wire.Size // the size of the client's terminal
	Offset   int64      // where in the output to begin, in bytes; negative counts from the end
}

// Attach connects streams to the supervised command of a sandbox and waits for it to exit for good, across restarts.
// When ctx ends, Attach returns and the command continues.
func (c *Client) Attach(ctx context.Context, name string, a Attachment, st Streams) (wire.Exit, error) {
	return c.Exec(ctx, name,
		wire.ExecRequest{Attach: wire.AttachRun, Offset: a.Offset, ReadOnly: a.ReadOnly, Stdin: a.Stdin, TTY: a.TTY,
			Size: a.Size}, st)
}

// Exec runs a command and waits for it to exit. A command that could not be started has code 126 or 127 and a
// message; an error means that the daemon could not try. When ctx ends, Exec returns and the command continues, but
// its stdin is closed and its terminal, if any, is hung up; if the sandbox is still being started for it, the start
// is cancelled.
//
// BUG(exec): Bytes of stdin that were on their way when the daemon died are
// lost; everything else of a command survives that.
func (c *Client) Exec(ctx context.Context, name string, req wire.ExecRequest, st Streams) (wire.Exit, error) {
	s := &session{c: c, name: name, req: req, st: st, out: st.Stdout, ended: make(chan struct{})}
	return s.loop(ctx)
}

// session is one exec, possibly over several connections.
type session struct {
	c     *Client
	name  string
	req   wire.ExecRequest
	st    Streams
	out   io.Writer // st.Stdout until it fails
	ended chan struct{}
	pumps sync.Once

	id  string // of the exec, once started
	got int64  // output bytes received

	mu   sync.Mutex
	conn net.Conn  // to write to; nil while lost; guarded by mu
	back chan bool // closed when conn is set again; guarded by mu
}

func (s *session) loop(ctx context.Context) (wire.Exit, error) {
	defer close(s.ended)
	var lost time.Time
	wait := 20 * time.Millisecond
	for {
		exit, progress, err := s.connect(ctx)
		var broken *brokenError
		switch {
		case err == nil:
			return exit, nil
		case ctx.Err() != nil:
			return wire.Exit{}, unavailable(ctx.Err())
		case errors.As(err, &broken) && s.id != "" && s.c.opt.Patience > 0:
			// The connection was lost; the command still runs.
		case errors.As(err, &broken):
			return wire.Exit{}, unavailable(broken.err)
		default:
			return wire.Exit{}, err
		}
		if progress || lost.IsZero() {
			lost, wait = time.Now(), 20*time.Millisecond
			if s.st.Lost != nil {
				s.st.Lost(broken.err)
			}
		}
		if time.Since(lost) > s.c.opt.Patience {
			return wire.Exit{}, &Error{Kind: KindUnavailable, Err: broken.err,
				Message: fmt.Sprintf("the connection to the daemon was lost and not restored within %s: "+
					"%v", s.c.opt.Patience, broken.err),
				Hint: "the command may still be running; see: coppice status " + s.name}
		}
		select {
		case <-ctx.Done():
			return wire.Exit{}, unavailable(ctx.Err())
		case <-time.After(wait):
		}
		wait = min(2*wait, time.Second)
	}
}

// brokenError is a connection that could not be made or was lost.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }

// connect runs the exec on one connection. progress reports whether the daemon answered with frames.
func (s *session) connect(ctx context.Context) (_ wire.Exit, progress bool, _ error) {
	if s.c.bad != nil {
		return wire.Exit{}, false, s.c.bad
	}
	conn, err := s.c.opt.Dial(ctx)
	if err != nil {
		return wire.Exit{}, false, &brokenError{err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	req := s.req
	if s.id != "" {
		req = wire.ExecRequest{Attach: s.id, Offset: s.got, TTY: s.req.TTY, Stdin: s.req.Stdin, Size: s.req.Size,
			Keep: s.req.Attach == wire.AttachRun || s.req.Run != nil, ReadOnly: s.req.ReadOnly}
	}
	br, err := s.upgrade(conn, req)
	if err != nil {
		return wire.Exit{}, false, err
	}
	defer s.setConn(nil)
	var buf []byte
	for {
		whole, err := wire.ReadWhole(br, buf)
		if err != nil {
			return wire.Exit{}, progress, &brokenError{err}
		}
		buf = whole
		switch p := whole[wire.FrameHead:]; wire.FrameType(whole[0]) {
		case wire.FrameStarted:
			var m wire.Started
			if err := json.Unmarshal(p, &m); err != nil {
				return wire.Exit{}, progress, fmt.Errorf("decode the start of the command: %w", err)
			}
			switch {
			case s.id == "" && s.st.Started != nil:
				s.st.Started(m)
			case s.id == "":
			case s.id == m.Exec && s.st.Lost != nil:
				s.st.Lost(nil)
			case s.id != m.Exec && s.st.Restarted != nil:
				s.st.Restarted()
			}
			s.id, s.got, progress = m.Exec, m.Offset, true
			s.setConn(conn)
			s.pumps.Do(s.startPumps)
		case wire.FrameStdout:
			s.got += int64(len(p))
			s.stdout(p)
		case wire.FrameStderr:
			s.got += int64(len(p))
			if s.st.Stderr != nil {
				_, _ = s.st.Stderr.Write(p) // a failed write to stderr cannot be reported
			}
		case wire.FrameDropped:
			var m wire.Dropped
			if json.Unmarshal(p, &m) == nil {
				s.got += m.Bytes
				if s.st.Dropped != nil {
					s.st.Dropped(m.Bytes)
				}
			}
		case wire.FrameExit:
			var m wire.Exit
			if err := json.Unmarshal(p, &m); err != nil {
				return wire.Exit{}, progress, fmt.Errorf("decode the exit of the command: %w", err)
			}
			return m, progress, nil
		case wire.FrameFailed:
			var m wire.Error
			if err := json.Unmarshal(p, &m); err != nil {
				return wire.Exit{}, progress, fmt.Errorf("decode the failure: %w", err)
			}
			return wire.Exit{}, progress, fromWire(m)
		}
	}
}

// upgrade sends the request with its first frame, and reads the response up to its first frame.
func (s *session) upgrade(conn net.Conn, req wire.ExecRequest) (*bufio.Reader, error) {
	first, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	// The request frame is sent with the head of the HTTP request, which saves a round trip.
	w := bufio.NewWriterSize(conn, len(first)+512)
	host, prefix, extra := "coppice", "", ""
	if to := s.c.to; to != nil {
		host, prefix = to.host, to.path
		if to.token != "" {
			extra = "Authorization: Bearer " + to.token + "\r\n" // validated by newRemote
		}
	}
	fmt.Fprintf(w, "POST %s%s/exec HTTP/1.1\r\nHost: %s\r\n%sConnection: Upgrade\r\nUpgrade: coppice-frames\r\n\r\n",
		prefix, at(s.name), host, extra)
	if err := wire.WriteFrame(w, wire.FrameRequest, first); err != nil {
		return nil, &Error{Kind: KindInvalid, Message: "the command is too long: " + err.Error(), Err: err}
	}
	// A server that returns an error may close before it has read the request: its response takes precedence over
	// werr.
	werr := w.Flush()
	br := bufio.NewReaderSize(conn, 4<<10) // larger payloads bypass the buffer
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, &brokenError{errors.Join(werr, err)}
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer res.Body.Close()
		return nil, problem(res)
	}
	return br, nil
}

func (s *session) stdout(p []byte) {
	if s.out == nil {
		return
	}
	if _, err := s.out.Write(p); err != nil {
		s.out = nil
		_ = s.send(wire.FrameSignal, mustJSON(wire.Signal{Name: "PIPE"})) // lost with the connection
	}
}

func mustJSON(v any) []byte {
	b, _ := json.Marshal(v) // cannot fail: structs of strings and numbers
	return b
}

func (s *session) setConn(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	if conn != nil && s.back != nil {
		close(s.back)
		s.back = nil
	}
}

// send writes one frame; it waits for a connection.
func (s *session) send(t wire.FrameType, p []byte) error {
	for {
		s.mu.Lock()
		conn := s.conn
		if conn == nil && s.back == nil {
			s.back = make(chan bool)
		}
		back := s.back
		s.mu.Unlock()
		if conn != nil {
			return wire.WriteFrame(conn, t, p)
		}
		select {
		case <-s.ended:
			return io.ErrClosedPipe
		case <-back:
		}
	}
}

// startPumps starts to forward stdin, sizes and signals. The goroutines end with the session, except one that is
// blocked in a Read of Stdin.
func (s *session) startPumps() {
	if s.st.Stdin != nil {
		go func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := s.st.Stdin.Read(buf)
				if n > 0 {
					_ = s.send(wire.FrameStdin, buf[:n]) // see BUG(exec)
				}
				if err != nil {
					_ = s.send(wire.FrameStdinEOF, nil)
					return
				}
				select {
				case <-s.ended:
					return
				default:
				}
			}
		}()
	}
	if s.st.Resize == nil && s.st.Signals == nil {
		return
	}
	go func() {
		for {
			select {
			case <-s.ended:
				return
			case size, ok := <-s.st.Resize:
				if !ok {
					s.st.Resize = nil
					continue
				}
				_ = s.send(wire.FrameResize, mustJSON(size))
			case name, ok := <-s.st.Signals:
				if !ok {
					s.st.Signals = nil
					continue
				}
				_ = s.send(wire.FrameSignal, mustJSON(wire.Signal{Name: name}))
			}
		}
	}()
}
