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

// The types of a frame of an exec stream, between client and daemon and between daemon and keeper. A frame is one
// byte of type, four bytes of length (big endian) and that many bytes of payload.
//
//	type      from    payload
//	Request   client  JSON ExecRequest; the first frame, once
//	Stdin     client  bytes
//	StdinEOF  client  empty: stdin is closed
//	Resize    client  JSON Size
//	Signal    client  JSON Signal
//	Hangup    daemon  empty: the client has disconnected; stdin is closed, and a
//	                  terminal hung up
//	Started   server  JSON Started; before any output
//	Stdout    server  bytes (with a terminal: all output)
//	Stderr    server  bytes
//	Dropped   server  JSON Dropped: output that was lost while no client was attached
//	Exit      server  JSON Exit; the last frame
//	Failed    server  JSON Error; the last frame of a command that was not started
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

// MaxFrame is the maximum payload of a frame, in bytes.
const MaxFrame = 1 << 20

// ExecRequest asks to run a command in a sandbox.
type ExecRequest struct {
	// the command and its arguments; at least one word; no shell is involved
	Cmd []string `json:"cmd"`
	Env []string `json:"env,omitempty"` // KEY=VALUE each, added to the sandbox's own
	// absolute path of the working directory; "" is the start directory of its repository, or the user's home, or /
	Dir       string `json:"dir,omitempty"`
	TTY       bool   `json:"tty,omitempty"`        // allocate a terminal; stderr is merged into stdout
	Stdin     bool   `json:"stdin,omitempty"`      // input will be sent; otherwise stdin is /dev/null
	Size      *Size  `json:"size,omitempty"`       // size of the terminal
	TimeoutMS int64  `json:"timeout_ms,omitempty"` // timeout: SIGTERM, then SIGKILL, and exit code 124; 0 is none
	Label     string `json:"label,omitempty"`      // message of the snapshot; "" is the command line
	// when automatic snapshots are taken while it runs; unless times are given, they begin after ten seconds; those with
	// memory are refused
	Capture Capture `json:"capture,omitzero"`
	// ID of a running command to attach to again after a lost connection; over frames only
	Attach string `json:"attach,omitempty"`
	// with attach: number of output bytes already received; a negative value starts that many bytes before the end,
	// at the beginning of a line
	Offset int64 `json:"offset,omitempty"`
	// run the command detached: a client that disconnects hangs nothing up, and several clients may attach; implied
	// where output is returned as events
	Keep bool `json:"keep,omitempty"`
	// with attach: input is ignored, and the command never waits for this reader
	ReadOnly bool `json:"read_only,omitempty"`
	// ID of a new command, "x" and ten hexadecimal digits; set by the daemon, ignored from a client
	ID string `json:"id,omitempty"`
	// start the sandbox's supervised command instead of cmd, and attach to it; over frames only
	Run *RunRequest `json:"run,omitempty"`
}

// Size is a terminal's size in character cells.
type Size struct {
	Cols uint16 `json:"cols"` // characters per line
	Rows uint16 `json:"rows"` // lines
}

// Signal asks for a signal to be sent, by name ("INT", "TERM").
type Signal struct {
	Name string `json:"name"` // such as "INT", "TERM", "KILL"
}

// Started reports that the command is running.
type Started struct {
	Exec   string `json:"exec"`             // id of the command
	PID    int    `json:"pid"`              // process ID inside the sandbox
	Offset int64  `json:"offset,omitempty"` // offset in the command's output at which this stream starts, in bytes
}

// Dropped reports that output was lost because no client was attached.
type Dropped struct {
	Bytes int64 `json:"bytes"` // bytes lost
}

// Exit is the result of a command. The daemon sets Snapshot and Head.
type Exit struct {
	// exit code; 124 timeout, 126 not executable, 127 not found, 128+n terminated by signal n, 153 too much output
	Code     int    `json:"code"`
	Signal   string `json:"signal,omitempty"`    // the signal that terminated it, such as "KILL"
	TimedOut bool   `json:"timed_out,omitempty"` // it exceeded timeout_ms or the sandbox's limit
	Limit    string `json:"limit,omitempty"`     // the limit of the sandbox that stopped it: "time", "output"
	// limits of all processes of the sandbox that were reached while it ran, if a control group counts them: "memory"
	// (processes were killed), "pids" (processes were not started)
	Hits []string `json:"hits,omitempty"`
	// number of its system calls that were refused and recorded; see NetRefused
	Denials  int64  `json:"denials,omitempty"`
	Message  string `json:"message,omitempty"`  // why it could not be started, with code 126 and 127
	Snapshot string `json:"snapshot,omitempty"` // the snapshot after it; the old head if nothing changed
	Head     string `json:"head,omitempty"`     // HEAD afterwards
	Changed  bool   `json:"changed,omitempty"`  // files changed while it ran
	Paths    int    `json:"paths,omitempty"`    // number of changed paths, added up over the snapshots taken while it ran, and at its exit
}

// Error is an error on the wire.
type Error struct {
	Kind    string `json:"kind"`           // for programs, such as "not_found"
	Message string `json:"message"`        // what went wrong
	Hint    string `json:"hint,omitempty"` // how to fix it
}

// FrameHead is the length of a frame's header, in bytes.
const FrameHead = 5

// gatherFrom is the payload size from which a frame is written with writev(2), without a copy.
const gatherFrom = 4 << 10

// WriteFrame writes one frame in a single Write. To a socket it writes without a copy and still atomically, so that
// other goroutines may write frames to it.
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

// gathers reports whether w writes several slices with one writev(2).
func gathers(w io.Writer) bool {
	switch w.(type) {
	case *net.UnixConn, *net.TCPConn:
		return true
	}
	return false
}

// WriteJSON writes one frame with v encoded as JSON.
func WriteJSON(w io.Writer, t FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("frame %d: %w", t, err)
	}
	return WriteFrame(w, t, b)
}

// ReadFrame reads one frame. buf holds the payload if it is large enough; the payload is valid until buf is used
// again. io.EOF means that the stream ended between frames.
func ReadFrame(r io.Reader, buf []byte) (FrameType, []byte, error) {
	whole, err := ReadWhole(r, buf)
	if err != nil {
		return 0, nil, err
	}
	return FrameType(whole[0]), whole[FrameHead:], nil
}

// ReadWhole is ReadFrame for forwarding: it returns the whole frame, with the type in the first byte and the payload
// after FrameHead bytes.
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
