package wire

import "time"

// ExecInfo describes a running command.
type ExecInfo struct {
	ID         string    `json:"id"`                   // ID of the command
	Cmd        []string  `json:"cmd"`                  // the command and its arguments
	PID        int       `json:"pid"`                  // process ID inside the sandbox
	Started    time.Time `json:"started"`              // time of its start
	TTY        bool      `json:"tty,omitempty"`        // it has a terminal
	Stdin      bool      `json:"stdin,omitempty"`      // it accepts input
	Kept       bool      `json:"kept,omitempty"`       // it is detached from its client; others may attach
	Attached   bool      `json:"attached,omitempty"`   // a client is attached
	Supervised bool      `json:"supervised,omitempty"` // it is the supervised command
	Capture    Capture   `json:"capture,omitzero"`     // when automatic snapshots are taken while it runs
	Exit       *Exit     `json:"exit,omitempty"`       // set in the response to a start if it could not be started
}

// ExecsResult lists the running commands of a sandbox.
type ExecsResult struct {
	Execs []ExecInfo `json:"execs"` // oldest first
}

// Session is a command with a terminal that several clients can attach to.
type Session struct {
	ID      string `json:"id"`      // for POST /v1/sessions/{id}/attach
	Exec    string `json:"exec"`    // ID of the command
	Sandbox string `json:"sandbox"` // ID of the sandbox
}

// AttachRequest asks for a token to attach to a Session.
type AttachRequest struct {
	ReadOnly bool `json:"read_only,omitempty"` // read-only: do not forward input
}

// AttachResult is the address and the single-use token to attach with.
type AttachResult struct {
	URL     string    `json:"url"`     // URL of a WebSocket, including the token
	Token   string    `json:"token"`   // valid once
	Expires time.Time `json:"expires"` // when the token expires
}

// TerminalControl is a text message on a terminal's WebSocket; binary messages carry terminal bytes. Exactly one
// field is set. The client sends Resize and Signal, the server the others, with Exit or Error as the last message.
type TerminalControl struct {
	Resize  *Size    `json:"resize,omitempty"`  // from the client: the terminal's new size
	Signal  string   `json:"signal,omitempty"`  // from the client: such as "INT"
	Dropped *Dropped `json:"dropped,omitempty"` // from the server: output was lost
	Exit    *Exit    `json:"exit,omitempty"`    // from the server, last: the command has exited
	Error   *Error   `json:"error,omitempty"`   // from the server, last: the terminal failed
}

// Output is the data of an event stdout or stderr in a stream of Server-Sent Events.
type Output struct {
	Text   string `json:"text,omitempty"`   // the bytes, if they are valid UTF-8
	Base64 []byte `json:"base64,omitempty"` // the bytes, if they are not valid UTF-8
}
