package wire

import "time"

// Program is one program that was started in a sandbox, as a hint of what a snapshot is
// about: whoever starts a program chooses its arguments. StartedProgram is the record.
type Program struct {
	PID int `json:"pid"`
	// Parent is the nearest of those above it that were started since the last
	// freeze as well; PID itself, when it took the place of one; 0: there is none.
	Parent int `json:"parent,omitempty"`
	// Args are the first of its arguments; "..." stands for what is left out.
	Args    []string  `json:"args"`
	Dir     string    `json:"dir,omitempty"` // the working directory, of those without a Parent
	Started time.Time `json:"started"`
	// Unlisted is how many more were started about then, for which there was no
	// room in the list.
	Unlisted int `json:"unlisted,omitempty"`
}

// StartedProgram is a program that a process of a sandbox became. Without Asked it is what the
// kernel had put into the process before its first instruction, told by init, which held it, or in
// tier gvisor by the sandbox's own kernel. Paths are as init sees them; what of them and of Args is
// not UTF-8 is replaced, and whole in the Raw fields.
type StartedProgram struct {
	ID   uint64 `json:"id"` // counts from 1 in the life of a box
	PID  int    `json:"pid"`
	PPID int    `json:"ppid,omitempty"` // as it was then; 0: not known
	// Parent is the program of the nearest process at or above PPID that is known to
	// have become one; 0: it ended before, or its end was Lost.
	Parent uint64 `json:"parent,omitempty"`
	// Before is the program that the process was; 0: it was a copy of its parent.
	Before uint64 `json:"before,omitempty"`
	// Exec is the exec that it descends from, where a way up to that is known; else
	// "".
	Exec string `json:"exec,omitempty"`
	// Exe is the file that was executed, of a script that of its interpreter, and in tier
	// gvisor its own; there /dev/fd/N is a descriptor, of which it is not certain. The
	// kernel adds " (deleted)" to one that has no name any more. "": it may not be
	// told, as that of a file which its user may execute and not read.
	Exe    string `json:"exe,omitempty"`
	ExeRaw []byte `json:"exe_raw,omitempty"`
	// Args are its first 4096 bytes of arguments, of which a script's begin with those
	// of its interpreter, but in tier gvisor; Cut is how many bytes more there were, -1 for some.
	Args    []string  `json:"args"`
	ArgsRaw [][]byte  `json:"args_raw,omitempty"`
	Cut     int64     `json:"cut,omitempty"`
	Dir     string    `json:"dir,omitempty"` // its working directory
	DirRaw  []byte    `json:"dir_raw,omitempty"`
	Started time.Time `json:"started"`
	// Asked says that a process inside traced the one that executed: Exe, Args and
	// whether it came to it are what the sandbox says.
	Asked bool `json:"asked,omitempty"`
	// Lost says that no EndedProgram will follow.
	Lost bool `json:"lost,omitempty"`
}

// EndedProgram is the end of a StartedProgram.
type EndedProgram struct {
	ID uint64    `json:"id"`
	At time.Time `json:"at"` // late by some milliseconds at most, while the box is not frozen
	// Code and Signal are as of Exit. Unknown says that neither is known: another
	// process waited for it, and the kernel is older than Linux 6.15.
	Code    int    `json:"code"`
	Signal  string `json:"signal,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
	// Next is the program that the process became, without an exit of its own.
	Next uint64 `json:"next,omitempty"`
}

// ProgramEvent is the beginning or the end of a program.
type ProgramEvent struct {
	Seq   uint64          `json:"seq"` // counts from 1 in the life of a box
	Began *StartedProgram `json:"began,omitempty"`
	Ended *EndedProgram   `json:"ended,omitempty"`
}

// ProgramEvents are some of a box.
type ProgramEvents struct {
	Events []ProgramEvent `json:"events"` // by Seq
	Next   uint64         `json:"next"`   // what to ask for events after
	// Dropped is how many of those that were asked for are not kept any more, or never
	// were.
	Dropped uint64 `json:"dropped,omitempty"`
}
