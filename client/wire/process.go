package wire

import "time"

// Process is a process of a sandbox. Its name and arguments are what it made of
// them, as all that comes from inside.
type Process struct {
	PID  int `json:"pid"`  // inside the sandbox; in tier workspace, the host's
	PPID int `json:"ppid"` // its parent's; 1, or the keeper's child, takes orphans
	// its command line, the first of it where cut is set; none of one that is dead, or that hides it
	Args    []string  `json:"args"`
	Raw     [][]byte  `json:"raw,omitempty"` // args as they are, base64, when some of them are no UTF-8
	Cut     bool      `json:"cut,omitempty"` // args is not all of it
	Name    string    `json:"name"`          // name of the process, at most 15 bytes
	Started time.Time `json:"started"`       // when, as far as the clock is right
	// the same in clock ticks since the machine was started, which with pid tells it
	// from every other process
	Start uint64 `json:"start"`
	CPUMS int64  `json:"cpu_ms"` // processor time so far, in milliseconds
	RSS   int64  `json:"rss"`    // memory, in bytes
	State string `json:"state"`  // a letter: R runs, S sleeps, D waits, T is stopped, Z is dead; see proc_pid_stat(5)
}

// ProcessesResult is the processes of a sandbox, by pid.
type ProcessesResult struct {
	Processes []Process `json:"processes"`      // by pid
	More      int       `json:"more,omitempty"` // how many there was no room for
}

// ProcessSignal asks for a signal to be sent to a process.
type ProcessSignal struct {
	Name string `json:"name,omitempty"` // such as "INT"; "" is TERM
	// the start of the Process that is meant: another one that has the number by now is
	// left alone; 0 is whoever has it
	Start uint64 `json:"start,omitempty"`
}
