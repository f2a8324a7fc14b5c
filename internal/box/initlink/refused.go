//go:build linux

package initlink

import "time"

// Refused lists the system calls that were refused since the previous Refused.
type Refused struct {
	Calls []RefusedCall `json:"calls,omitempty"`
	More  int64         `json:"more,omitempty"`  // the number of other calls that were refused themselves
	Files int64         `json:"files,omitempty"` // the number of other calls that were refused a file
}

// Empty reports whether nothing was refused.
func (r Refused) Empty() bool { return len(r.Calls) == 0 && r.More == 0 && r.Files == 0 }

// RefusedCall is a system call that was refused, once or several times.
type RefusedCall struct {
	Call    string `json:"call"`
	Errno   string `json:"errno"`             // the error that the call returned
	Program string `json:"program,omitempty"` // program that the caller executes; any bytes
	PID     int    `json:"pid"`               // pid of the first caller
	Command int    `json:"command,omitempty"` // the leader of the caller's session
	Lives   bool   `json:"lives,omitempty"`   // whether Command still runs
	Count   int64  `json:"count"`
	// File is set if a file was refused and not the call itself.
	File *RefusedFile `json:"file,omitempty"`
}

// RefusedFile is a file that was refused, once or several times.
type RefusedFile struct {
	Path  string    `json:"path"` // absolute, at most 1024 bytes; any bytes
	Op    string    `json:"op"`   // wire.FileRead and so on
	Rule  string    `json:"rule"` // wire.RuleHidden and so on
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}
