//go:build linux

package initlink

import "time"

// Programs are the events of programs, in order. The bytes of one message are bounded.
type Programs struct {
	Events []ProgramEvent `json:"events"`
	// Dropped is how many events before these were dropped because the keeper did not read them and the buffer was
	// full.
	Dropped uint64 `json:"dropped,omitempty"`
}

// ProgramEvent is the start or the end of a program. One of the fields is set.
type ProgramEvent struct {
	Began *Program      `json:"began,omitempty"`
	Ended *ProgramEnded `json:"ended,omitempty"`
}

// Program is a program that a process executed: wire.StartedProgram, with strings that may hold
// any bytes as []byte.
type Program struct {
	ID      uint64    `json:"id"` // counts from 1 in the life of init
	PID     int       `json:"pid"`
	PPID    int       `json:"ppid,omitempty"`
	Parent  uint64    `json:"parent,omitempty"`
	Before  uint64    `json:"before,omitempty"`
	Exec    string    `json:"exec,omitempty"`
	Exe     []byte    `json:"exe,omitempty"`
	Args    []byte    `json:"args,omitempty"` // each ends with NUL unless it was cut
	Cut     int64     `json:"cut,omitempty"`  // bytes of Args that were left out; -1 if the number is not known
	Dir     []byte    `json:"dir,omitempty"`
	Started time.Time `json:"started"`
	Asked   bool      `json:"asked,omitempty"`
	Lost    bool      `json:"lost,omitempty"` // its end will not be recorded
}

// ProgramEnded is the end of a program.
type ProgramEnded struct {
	ID uint64    `json:"id"`
	At time.Time `json:"at"`
	// Status is the wait status of the process; nil if it is not known.
	Status *uint32 `json:"status,omitempty"`
	Next   uint64  `json:"next,omitempty"` // the program that the process executed next
}
