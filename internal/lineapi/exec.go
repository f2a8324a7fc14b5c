package lineapi

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// maxArg is the length of the longest command that is passed to a shell as an argument, in bytes. The kernel
	// refuses arguments of 128 KiB (MAX_ARG_STRLEN).
	maxArg = 100 << 10
	// maxLabel is the maximum size of a command in its snapshot's message, in bytes.
	maxLabel = 1 << 10
	// fromStdin makes a shell execute its stdin, with no other input.
	fromStdin = `eval "exec </dev/null
$(cat)"`
	// notFound is the exit code for a missing program.
	notFound = 127
)

type cmdRequest struct {
	Cmd string `json:"cmd"`
}

func (q cmdRequest) check(op string) error {
	switch {
	case q.Cmd == "":
		return missingField(op, "cmd", "the command")
	case strings.ContainsRune(q.Cmd, 0):
		return fault.New(fault.Invalid, "invalid command: must not contain a NUL byte")
	}
	return nil
}

// script returns a command in the form for a shell: as an argument or, if it is too long for one, as stdin.
func script(cmd string) (word string, stdin io.Reader) {
	if len(cmd) <= maxArg {
		return cmd, nil
	}
	var frames bytes.Buffer
	for rest := cmd; rest != ""; {
		n := min(len(rest), 32<<10)
		_ = wire.WriteFrame(&frames, wire.FrameStdin, []byte(rest[:n])) // a buffer never fails
		rest = rest[n:]
	}
	_ = wire.WriteFrame(&frames, wire.FrameStdinEOF, nil)
	return fromStdin, &frames
}

type exitAnswer struct {
	Exit int    `json:"exit"`
	Node string `json:"node"`
	Head string `json:"head"`
}

// exec runs a command in a login shell, and streams its output.
func (c *conn) exec(q cmdRequest) (any, error) {
	if err := q.check("exec"); err != nil {
		return nil, err
	}
	for _, shell := range []string{"bash", "sh"} {
		word, stdin := script(q.Cmd)
		st := newStream(stdin, c.write)
		exit, err := c.opt.Engine.Exec(c.ctx, c.opt.Sandbox, wire.ExecRequest{
			Cmd: []string{shell, "-lc", word}, Stdin: stdin != nil, Label: cut(q.Cmd, maxLabel),
		}, st)
		switch {
		case err != nil:
			return nil, err
		case !st.started() && exit.Code == notFound:
			continue
		case !st.started() && exit.Message != "":
			return nil, fault.New(fault.Invalid, "%s", exit.Message)
		}
		st.flush()
		return exitAnswer{exit.Code, exit.Snapshot, exit.Head}, nil
	}
	return nil, fault.New(fault.NotFound, "neither bash nor sh found in the sandbox").
		WithHint("rewind to a snapshot that has one: coppice rewind NAME REF")
}

// stream is the client's end of an exec. It converts frames to lines. Its Read returns the frames of stdin, if
// any, and then blocks until the end.
type stream struct {
	stdin io.Reader // nil: none
	send  func([]byte) error
	begun chan struct{} // closed with start
	end   chan struct{} // closed when the engine stops reading
	once  sync.Once

	mu    sync.Mutex
	start *wire.Started // guarded by mu
	tails [2][]byte     // guarded by mu; of stdout and stderr: the first bytes of an incomplete character
	err   error         // guarded by mu; returned by send
}

func newStream(stdin io.Reader, send func([]byte) error) *stream {
	return &stream{stdin: stdin, send: send, begun: make(chan struct{}), end: make(chan struct{})}
}

func (s *stream) started() bool {
	select {
	case <-s.begun:
		return true
	default:
		return false
	}
}

func (s *stream) Read(p []byte) (int, error) {
	if s.stdin != nil {
		if n, err := s.stdin.Read(p); err == nil {
			return n, nil
		}
	}
	<-s.end
	return 0, os.ErrDeadlineExceeded
}

// SetReadDeadline ends Read permanently: the engine calls it once, at the end.
func (s *stream) SetReadDeadline(time.Time) error {
	s.once.Do(func() { close(s.end) })
	return nil
}

// Write processes one whole frame.
func (s *stream) Write(frame []byte) (int, error) {
	t, p, err := wire.ReadFrame(bytes.NewReader(frame), nil)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch t {
	case wire.FrameStarted:
		var st wire.Started
		if err := json.Unmarshal(p, &st); err != nil {
			return 0, err
		}
		if s.start == nil {
			s.start = &st
			close(s.begun)
		}
	case wire.FrameStdout, wire.FrameStderr:
		s.output(t, p)
	case wire.FrameDropped:
		var d wire.Dropped
		if err := json.Unmarshal(p, &d); err != nil {
			return 0, err
		}
		s.line(map[string]int64{"dropped": d.Bytes})
	}
	return len(frame), s.err
}

// output sends p, except for an incomplete character at its end.
func (s *stream) output(t wire.FrameType, p []byte) {
	tail := &s.tails[0]
	if t == wire.FrameStderr {
		tail = &s.tails[1]
	}
	p = append(*tail, p...)
	n := len(p) - partial(p)
	*tail = append([]byte(nil), p[n:]...)
	s.text(t, p[:n])
}

func (s *stream) text(t wire.FrameType, p []byte) {
	switch {
	case len(p) == 0:
	case t == wire.FrameStdout:
		s.line(map[string]string{"stdout": string(p)})
	default:
		s.line(map[string]string{"stderr": string(p)})
	}
}

// line sends one line, unless an earlier one failed.
func (s *stream) line(v any) {
	if s.err != nil || s.send == nil {
		return
	}
	b, err := encode(v)
	if err == nil {
		err = s.send(b)
	}
	s.err = err
}

// flush sends the incomplete characters at the end of the output.
func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text(wire.FrameStdout, s.tails[0])
	s.text(wire.FrameStderr, s.tails[1])
	s.tails = [2][]byte{}
}

// partial returns the length of the incomplete character at the end of p.
func partial(p []byte) int {
	for n := 1; n <= min(len(p), utf8.UTFMax-1); n++ {
		if b := p[len(p)-n]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
