package wire

import "time"

// ExecInfo is one running command.
type ExecInfo struct {
	ID         string    `json:"id"`                   // of the command
	Cmd        []string  `json:"cmd"`                  // the command and its arguments
	PID        int       `json:"pid"`                  // inside the sandbox
	Started    time.Time `json:"started"`              // when
	TTY        bool      `json:"tty,omitempty"`        // it has a terminal
	Stdin      bool      `json:"stdin,omitempty"`      // it accepts input
	Kept       bool      `json:"kept,omitempty"`       // it is detached from its client; others may attach
	Attached   bool      `json:"attached,omitempty"`   // a client is attached
	Supervised bool      `json:"supervised,omitempty"` // it is the supervised command
	Exit       *Exit     `json:"exit,omitempty"`       // set in the response to a start if it could not be started
}

// ExecsResult is the running commands of a sandbox, oldest first.
type ExecsResult struct {
	Execs []ExecInfo `json:"execs"` // oldest first
}

// Session is a command on a terminal, to which terminals elsewhere can attach.
type Session struct {
	ID      string `json:"id"`      // for POST /v1/sessions/{id}/attach
	Exec    string `json:"exec"`    // id of the command
	Sandbox string `json:"sandbox"` // id of the sandbox
}

// AttachRequest asks for a token with which to attach to a Session.
type AttachRequest struct {
	ReadOnly bool `json:"read_only,omitempty"` // read-only: do not forward input
}

// AttachResult is the address and the single-use token to attach with.
type AttachResult struct {
	URL     string    `json:"url"`     // of a WebSocket, with the token in it
	Token   string    `json:"token"`   // valid once
	Expires time.Time `json:"expires"` // when the token expires
}

// TerminalControl is a text message of a terminal's WebSocket; the binary ones are
// its bytes. One of the fields is set: the client sends the first two, the server
// the others, and Exit or Error last of all.
type TerminalControl struct {
	Resize  *Size    `json:"resize,omitempty"`  // from the client: the terminal's new size
	Signal  string   `json:"signal,omitempty"`  // from the client: such as "INT"
	Dropped *Dropped `json:"dropped,omitempty"` // from the server: output was lost
	Exit    *Exit    `json:"exit,omitempty"`    // from the server, last: the command has ended
	Error   *Error   `json:"error,omitempty"`   // from the server, last: the terminal cannot go on
}

// Output is the data of an event stdout or stderr in a stream of Server-Sent
// Events. Text is set where the bytes are UTF-8, else Base64.
type Output struct {
	Text   string `json:"text,omitempty"`   // the bytes, where they are UTF-8
	Base64 []byte `json:"base64,omitempty"` // the bytes, where they are not
}
