package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
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
	Cmd       []string `json:"cmd"`                  // argv; at least one word
	Env       []string `json:"env,omitempty"`        // KEY=VALUE, added to the sandbox's own
	Dir       string   `json:"dir,omitempty"`        // absolute path inside; "" is the user's home, else /
	TTY       bool     `json:"tty,omitempty"`        // give it a terminal
	Stdin     bool     `json:"stdin,omitempty"`      // stdin will be sent; else it is /dev/null
	Size      *Size    `json:"size,omitempty"`       // of the terminal
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // 0: none; SIGTERM, then SIGKILL
	Label     string   `json:"label,omitempty"`      // message of the snapshot; "" is the command line
	// Attach and Offset continue a running exec after a lost connection: Attach
	// is its id, Offset how many output bytes were already received.
	Attach string `json:"attach,omitempty"`
	Offset int64  `json:"offset,omitempty"`
}

// Size is a terminal's size in character cells.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Signal asks for a signal to be sent, by name ("INT", "TERM").
type Signal struct {
	Name string `json:"name"`
}

// Started says that the command runs.
type Started struct {
	Exec string `json:"exec"` // its id, for Attach
	PID  int    `json:"pid"`  // inside the sandbox
}

// Dropped says that output was lost because nobody was attached.
type Dropped struct {
	Bytes int64 `json:"bytes"`
}

// Exit ends an exec. Snapshot and Head are filled in by the daemon.
type Exit struct {
	Code     int    `json:"code"`             // 124 timeout, 126 not executable, 127 not found, 128+n signal
	Signal   string `json:"signal,omitempty"` // set when a signal ended it
	TimedOut bool   `json:"timed_out,omitempty"`
	Message  string `json:"message,omitempty"`  // why it could not be started, with 126 and 127
	Snapshot string `json:"snapshot,omitempty"` // the snapshot after it; the old head when nothing changed
	Head     string `json:"head,omitempty"`
	Changed  bool   `json:"changed,omitempty"`
	Paths    int    `json:"paths,omitempty"` // how many paths it changed
}

// Error is an error on the wire.
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// WriteFrame writes one frame in a single Write.
func WriteFrame(w io.Writer, t FrameType, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("frame of %d bytes: the limit is %d", len(payload), MaxFrame)
	}
	b := make([]byte, 5+len(payload))
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:5], uint32(len(payload)))
	copy(b[5:], payload)
	_, err := w.Write(b)
	return err
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
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("frame of %d bytes: the limit is %d", n, MaxFrame)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return FrameType(head[0]), buf, nil
}
