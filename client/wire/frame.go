package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// FrameType is the first byte of a frame.
type FrameType byte

// The frames of an exec stream, between client and daemon and between daemon
// and keeper. A frame is one byte of type, four bytes of length (big endian) and
// that many bytes of payload.
//
//	type      from    payload
//	Request   client  JSON ExecRequest; the first frame, once
//	Stdin     client  bytes
//	StdinEOF  client  empty: stdin is closed
//	Resize    client  JSON Size
//	Signal    client  JSON Signal
//	Hangup    daemon  empty: the client is gone; stdin is closed, and a terminal
//	                  hung up
//	Started   server  JSON Started; before any output
//	Stdout    server  bytes (with a terminal: all output)
//	Stderr    server  bytes
//	Dropped   server  JSON Dropped: output that was lost while nobody read
//	Exit      server  JSON Exit; the last frame
//	Failed    server  JSON Error; the last frame when it was not run
const (
	FrameRequest  FrameType = 0
	FrameStdin    FrameType = 1
	FrameStdinEOF FrameType = 2
	FrameStdout   FrameType = 3
	FrameStderr   FrameType = 4
	FrameResize   FrameType = 5
	FrameSignal   FrameType = 6
	FrameExit     FrameType = 7
	FrameStarted  FrameType = 8
	FrameFailed   FrameType = 9
	FrameDropped  FrameType = 10
	FrameHangup   FrameType = 11
)

// MaxFrame is the largest payload that ReadFrame takes, in bytes.
const MaxFrame = 1 << 20

// ExecRequest asks for a command to be run in a sandbox.
type ExecRequest struct {
	// the command and its arguments; at least one word, and no shell between
	Cmd []string `json:"cmd"`
	Env []string `json:"env,omitempty"` // KEY=VALUE each, added to the sandbox's own
	// absolute path of the working directory; "" is where its repository's work began, else the user's home, else /
	Dir       string `json:"dir,omitempty"`
	TTY       bool   `json:"tty,omitempty"`        // allocate a terminal; stderr is merged into stdout
	Stdin     bool   `json:"stdin,omitempty"`      // input will be sent; otherwise stdin is /dev/null
	Size      *Size  `json:"size,omitempty"`       // of the terminal
	TimeoutMS int64  `json:"timeout_ms,omitempty"` // timeout: SIGTERM, then SIGKILL, and exit code 124; 0 is none
	Label     string `json:"label,omitempty"`      // message of the snapshot; "" is the command line
	// id of a running command to continue with after a lost connection; over frames alone
	Attach string `json:"attach,omitempty"`
	// with attach: how many bytes of output were received already; negative begins so
	// many before the end, at the beginning of a line
	Offset int64 `json:"offset,omitempty"`
	// run it for nobody in particular: who goes away hangs nothing up, and several may
	// attach; always so where output comes as events
	Keep bool `json:"keep,omitempty"`
	// with attach: what is sent is ignored, and the command never waits for this reader
	ReadOnly bool `json:"read_only,omitempty"`
	// what a new command is called, "x" and ten hexadecimal digits: the daemon's to
	// choose, a client's is ignored
	ID string `json:"id,omitempty"`
	// start the sandbox's supervised command instead of cmd, and attach to it; over frames alone
	Run *RunRequest `json:"run,omitempty"`
}

// Size is a terminal's size in character cells.
type Size struct {
	Cols uint16 `json:"cols"` // characters in a line
	Rows uint16 `json:"rows"` // lines
}

// Signal asks for a signal to be sent, by name ("INT", "TERM").
type Signal struct {
	Name string `json:"name"` // such as "INT", "TERM", "KILL"
}

// Started reports that the command is running.
type Started struct {
	Exec   string `json:"exec"`             // id of the command
	PID    int    `json:"pid"`              // inside the sandbox
	Offset int64  `json:"offset,omitempty"` // where in the command's output this stream begins, in bytes
}

// Dropped reports that output was lost because no client was attached.
type Dropped struct {
	Bytes int64 `json:"bytes"` // bytes lost
}

// Exit is the result of an exec. The daemon sets Snapshot and Head.
type Exit struct {
	// of the command; 124 timeout, 126 not executable, 127 not found, 128+n ended by signal n, 153 too much output
	Code     int    `json:"code"`
	Signal   string `json:"signal,omitempty"`    // the signal that ended it, such as "KILL"
	TimedOut bool   `json:"timed_out,omitempty"` // it exceeded timeout_ms or the sandbox's limit
	Limit    string `json:"limit,omitempty"`     // the limit of the sandbox that ended it: "time", "output"
	// limits of all processes of the sandbox that they came to while it ran, where a control
	// group counts that: "memory" (some were killed), "pids" (some were not started)
	Hits     []string `json:"hits,omitempty"`
	Denials  int64    `json:"denials,omitempty"`  // how many system calls of it were refused that are told; see NetRefused
	Message  string   `json:"message,omitempty"`  // why it could not be started, with 126 and 127
	Snapshot string   `json:"snapshot,omitempty"` // the snapshot after it; the old head when nothing changed
	Head     string   `json:"head,omitempty"`     // HEAD afterwards
	Changed  bool     `json:"changed,omitempty"`  // it changed files
	Paths    int      `json:"paths,omitempty"`    // how many paths it changed
}

// Error is an error on the wire.
type Error struct {
	Kind    string `json:"kind"`           // for programs, such as "not_found"
	Message string `json:"message"`        // what went wrong
	Hint    string `json:"hint,omitempty"` // how to fix it
}

// FrameHead is the length of what stands before a frame's payload, in bytes.
const FrameHead = 5

// gatherFrom is how large a payload must be to be written from where it lies.
const gatherFrom = 4 << 10

// WriteFrame writes one frame in a single Write. To a socket it is written at once
// as well, and without a copy: other goroutines may write frames there.
func WriteFrame(w io.Writer, t FrameType, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("frame of %d bytes: the limit is %d", len(payload), MaxFrame)
	}
	if len(payload) >= gatherFrom && gathers(w) {
		head := make([]byte, FrameHead)
		putHead(head, t, len(payload))
		_, err := (&net.Buffers{head, payload}).WriteTo(w)
		return err
	}
	b := make([]byte, FrameHead+len(payload))
	putHead(b, t, len(payload))
	copy(b[FrameHead:], payload)
	_, err := w.Write(b)
	return err
}

func putHead(b []byte, t FrameType, size int) {
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:FrameHead], uint32(size))
}

// gathers reports whether several slices are written to w by one writev(2).
func gathers(w io.Writer) bool {
	switch w.(type) {
	case *net.UnixConn, *net.TCPConn:
		return true
	}
	return false
}

// WriteJSON writes one frame with v as JSON.
func WriteJSON(w io.Writer, t FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("frame %d: %w", t, err)
	}
	return WriteFrame(w, t, b)
}

// ReadFrame reads one frame. buf is used for the payload when it is large
// enough; the payload is valid until buf is used again. io.EOF means that the
// stream ended between frames.
func ReadFrame(r io.Reader, buf []byte) (FrameType, []byte, error) {
	whole, err := ReadWhole(r, buf)
	if err != nil {
		return 0, nil, err
	}
	return FrameType(whole[0]), whole[FrameHead:], nil
}

// ReadWhole is ReadFrame for who passes frames on: it gives the whole frame, its
// type in the first byte and its payload behind the first FrameHead.
func ReadWhole(r io.Reader, buf []byte) ([]byte, error) {
	if cap(buf) < FrameHead {
		buf = make([]byte, FrameHead, FrameHead+512)
	}
	head := buf[:FrameHead]
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return nil, fmt.Errorf("frame of %d bytes: the limit is %d", n, MaxFrame)
	}
	size := FrameHead + int(n)
	if size > cap(buf) {
		buf = append(make([]byte, 0, size), head...)
	}
	buf = buf[:size]
	if _, err := io.ReadFull(r, buf[FrameHead:]); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return buf, nil
}
