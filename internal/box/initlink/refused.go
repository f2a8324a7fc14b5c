//go:build linux

package initlink

// Refused lists the system calls that were refused since the previous Refused.
type Refused struct {
	Calls []RefusedCall `json:"calls,omitempty"`
	More  int64         `json:"more,omitempty"` // the number of other calls
}

// RefusedCall is a system call that was refused, once or several times.
type RefusedCall struct {
	Call    string `json:"call"`
	Errno   string `json:"errno"`             // the error that the call returned
	Program string `json:"program,omitempty"` // program that the caller executes; any bytes
	PID     int    `json:"pid"`               // pid of the first caller
	Command int    `json:"command,omitempty"` // the leader of the caller's session
	Lives   bool   `json:"lives,omitempty"`   // whether Command still runs
	Count   int64  `json:"count"`
}
