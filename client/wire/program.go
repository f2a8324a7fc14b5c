package wire

import "time"

// Program is a program that was started in a sandbox, used to describe a snapshot. A process chooses its own
// arguments. For the audit record see StartedProgram.
type Program struct {
	PID int `json:"pid"`
	// Parent is the PID of the nearest ancestor that was started since the last freeze as well; PID itself, if the
	// program replaced that one; 0 if there is none.
	Parent int `json:"parent,omitempty"`
	// Args are the first arguments; "..." stands for omitted ones.
	Args    []string  `json:"args"`
	Dir     string    `json:"dir,omitempty"` // the working directory, if there is no Parent
	Started time.Time `json:"started"`
	// Unlisted is the number of programs started about then that the list had no room for.
	Unlisted int `json:"unlisted,omitempty"`
}

// StartedProgram is a program that a process of a sandbox executed. Unless Asked is set, it is what the kernel had
// loaded into the process before its first instruction, as reported by init, which held the process, or in tier
// gvisor by the sandbox's own kernel. Paths are as init sees them. In Exe, Args and Dir, bytes that are not UTF-8 are
// replaced; the Raw fields have the exact bytes.
type StartedProgram struct {
	ID   uint64 `json:"id"` // counts from 1 since the sandbox was started
	PID  int    `json:"pid"`
	PPID int    `json:"ppid,omitempty"` // at that time; 0 if unknown
	// Parent is the program of the nearest process at or above PPID that executed one; 0 if it ended before, or its
	// end was Lost.
	Parent uint64 `json:"parent,omitempty"`
	// Before is the program that the process executed before; 0 if it was a copy of its parent.
	Before uint64 `json:"before,omitempty"`
	// Exec is the ID of the command that it descends from; "" if unknown.
	Exec string `json:"exec,omitempty"`
	// Exe is the executed file; of a script it is the interpreter, and in tier gvisor the script itself. In tier
	// gvisor /dev/fd/N is a descriptor whose file is not certain. The kernel appends " (deleted)" to an unlinked
	// file. Exe is "" if it must not be revealed, as for a file that its user may execute but not read.
	Exe    string `json:"exe,omitempty"`
	ExeRaw []byte `json:"exe_raw,omitempty"`
	// Args are the first 4096 bytes of arguments; those of a script start with its interpreter's, except in tier
	// gvisor. Cut is the number of omitted bytes, -1 if unknown.
	Args    []string  `json:"args"`
	ArgsRaw [][]byte  `json:"args_raw,omitempty"`
	Cut     int64     `json:"cut,omitempty"`
	Dir     string    `json:"dir,omitempty"` // working directory
	DirRaw  []byte    `json:"dir_raw,omitempty"`
	Started time.Time `json:"started"`
	// Asked means that a traced process executed it: Exe, Args and whether it was executed at all are what the
	// sandbox says.
	Asked bool `json:"asked,omitempty"`
	// Lost means that no EndedProgram will follow.
	Lost bool `json:"lost,omitempty"`
}

// EndedProgram is the end of a StartedProgram.
type EndedProgram struct {
	ID uint64    `json:"id"`
	At time.Time `json:"at"` // late by a few milliseconds at most, while the sandbox is not frozen
	// Code and Signal are as in Exit. Unknown means that neither is known: another process waited for it, and the
	// kernel is older than Linux 6.15.
	Code    int    `json:"code"`
	Signal  string `json:"signal,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
	// Next is the program that the process executed next, without exiting.
	Next uint64 `json:"next,omitempty"`
}

// ProgramEvent is the start or the end of a program.
type ProgramEvent struct {
	Seq   uint64          `json:"seq"` // counts from 1 since the sandbox was started
	Began *StartedProgram `json:"began,omitempty"`
	Ended *EndedProgram   `json:"ended,omitempty"`
}

// ProgramEvents is a page of the program events of a sandbox.
type ProgramEvents struct {
	Events []ProgramEvent `json:"events"` // by Seq
	Next   uint64         `json:"next"`   // the position to continue from
	// Dropped is the number of requested events that are no longer stored, or never were.
	Dropped uint64 `json:"dropped,omitempty"`
}
