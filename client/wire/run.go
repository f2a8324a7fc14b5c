package wire

import "time"

// AttachRun is the value of ExecRequest.Attach for the supervised command of a sandbox, across restarts.
const AttachRun = "run"

// The values of RunRequest.Restart.
const (
	RestartNo       = "no"
	RestartOnRewind = "on-rewind" // after the sandbox was rewound under it; the default
	RestartAlways   = "always"    // also when it exits
)

// RunRequest asks for a supervised command with automatic snapshots. It continues without a client.
type RunRequest struct {
	Cmd []string `json:"cmd"`           // the command and its arguments; at least one word; no shell is involved
	Env []string `json:"env,omitempty"` // KEY=VALUE each, added to the sandbox's own
	// absolute path of the working directory; "" is the start directory of its repository, or the user's home, or /
	Dir   string `json:"dir,omitempty"`
	TTY   bool   `json:"tty,omitempty"`   // allocate a terminal
	Stdin bool   `json:"stdin,omitempty"` // attached clients may send stdin; otherwise it is /dev/null
	Size  *Size  `json:"size,omitempty"`  // size of the terminal
	// "no", "on-rewind" (after the sandbox was rewound under it) or "always" (also when it exits); "" is "on-rewind"
	Restart string  `json:"restart,omitempty"`
	Capture Capture `json:"capture,omitzero"` // when automatic snapshots are taken
	Remove  bool    `json:"remove,omitempty"` // remove the sandbox after the command has exited
}

// Capture configures automatic snapshots. The zero value selects the defaults.
type Capture struct {
	Off     bool  `json:"off,omitempty"`      // none for this command while it runs, only after it has exited
	QuietMS int64 `json:"quiet_ms,omitempty"` // time without a change; 0 is 200, the minimum is 10
	// interval of snapshots with memory, in tier gvisor; 0 is never, otherwise between 1000 and a day
	MemoryEveryMS int64 `json:"memory_every_ms,omitempty"`
	MemoryOnMark  bool  `json:"memory_on_mark,omitempty"` // also take one with each mark
	// maximum delay after the first change, at least quiet_ms; 0 is 2000, the maximum is a day
	MaxMS int64 `json:"max_ms,omitempty"`
}

// Run is the supervised command of a sandbox.
type Run struct {
	RunRequest
	Exec    string     `json:"exec"`            // ID of the command, new with every start
	Started time.Time  `json:"started"`         // when it was last started
	Starts  int        `json:"starts"`          // number of starts
	Ended   *time.Time `json:"ended,omitempty"` // set when it has exited and is not started again
	Exit    *Exit      `json:"exit,omitempty"`  // set when it has exited and is not started again
}
