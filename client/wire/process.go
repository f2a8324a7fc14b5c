package wire

import "time"

// Process is a process of a sandbox. Its name and arguments are its own choice and must not be trusted.
type Process struct {
	PID  int `json:"pid"`  // inside the sandbox; in tier workspace, the host's
	PPID int `json:"ppid"` // its parent's; 1, or the keeper's child, adopts orphans
	// its command line, the beginning of it if cut is set; empty for a zombie, or if it is hidden
	Args    []string  `json:"args"`
	Raw     [][]byte  `json:"raw,omitempty"` // args as bytes, base64, if some of them are not UTF-8
	Cut     bool      `json:"cut,omitempty"` // args is truncated
	Name    string    `json:"name"`          // name of the process, at most 15 bytes
	Started time.Time `json:"started"`       // start time, by the host's clock
	// start time in clock ticks since the machine was booted; together with pid it identifies a process
	Start uint64 `json:"start"`
	CPUMS int64  `json:"cpu_ms"` // processor time so far, in milliseconds
	RSS   int64  `json:"rss"`    // memory, in bytes
	State string `json:"state"`  // a letter: R runs, S sleeps, D waits, T is stopped, Z is dead; see proc_pid_stat(5)
}

// ProcessesResult lists the processes of a sandbox.
type ProcessesResult struct {
	Processes []Process `json:"processes"`      // by pid
	More      int       `json:"more,omitempty"` // number of omitted processes
}

// ProcessSignal asks for a signal to be sent to a process.
type ProcessSignal struct {
	Name string `json:"name,omitempty"` // such as "INT"; "" is TERM
	// the start of the Process that is meant: if another one has the pid now, it is not signalled; 0 is any
	Start uint64 `json:"start,omitempty"`
}
