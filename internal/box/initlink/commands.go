//go:build linux

package initlink

import "github.com/coppice-dev/coppice/client/wire"

// Pipes are the names of the descriptors of a Spawn.
var Pipes = [3]string{"stdout", "stderr", "stdin"}

// Terminal is the name of the descriptor of a Spawned, the master of a terminal.
const Terminal = "terminal"

// Resize gives the terminal of a command a size.
type Resize struct {
	PID int `json:"pid"`
	wire.Size
}

// Spawn asks init to start a command.
type Spawn struct {
	Exec string     `json:"exec,omitempty"` // its id, for Program.Exec
	Cmd  []string   `json:"cmd"`
	Env  []string   `json:"env,omitempty"` // over the sandbox's own
	Dir  string     `json:"dir,omitempty"` // "" is the home directory, or / where it does not exist
	TTY  bool       `json:"tty,omitempty"`
	Size *wire.Size `json:"size,omitempty"`
}

// Spawned reports that a command runs as PID. If PID is 0 it reports why not: an exit code of 126 or 127 with a
// message, or an error.
type Spawned struct {
	PID     int         `json:"pid"`
	Code    int         `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
	Err     *wire.Error `json:"err,omitempty"`
}

// Exited reports that a command exited, with its wait status.
type Exited struct {
	PID    int    `json:"pid"`
	Status uint32 `json:"status"`
	Alone  bool   `json:"alone,omitempty"` // no process but init was left
	// Written is the number of bytes that the command, and other processes with its descriptors, have written to
	// standard output and to standard error so far. It is set in tier gvisor, where the keeper cannot learn it from the
	// command's pipes.
	Written []int64 `json:"written,omitempty"`
	// Used are the resources of the command and of those of its descendants that it waited for.
	Used wire.Resources `json:"used,omitzero"`
}

// The processes that a Kill reaches.
const (
	KillGroup = "group" // the command's process group
	KillTree  = "tree"  // its session, its process group, and all descendants of these
	KillAll   = "all"   // every process but init; PID is ignored
	// KillForeground is the foreground process group of the command's terminal, in tier gvisor.
	KillForeground = "foreground"
)

// Kill sends a signal.
type Kill struct {
	PID    int    `json:"pid"`
	Signal int    `json:"signal"`
	Whom   string `json:"whom"`
	// Doom kills what is left of the command's tree when the command ends.
	Doom bool `json:"doom,omitempty"`
}
