// Package daemon is the process that owns a home: it listens on the home's socket, checks callers, assembles the
// engine from the packages below, and exits when it has been idle. It also has the client's half: Connect, which
// starts a daemon if none runs. Only the CLI imports it.
//
// The files in a home:
//
//	format       "coppice home 1\n" or "coppice home 2\n": the version of the layout
//	lock         flock of the daemon that serves this home; contains its pid
//	daemon.sock  the API, 0600
//	preview.key  signs links to ports, 0600; created with the first link
//	daemon.log   log of a daemon that was started automatically
//
// The home itself is 0700. Everything else in it belongs to the engine.
package daemon

import (
	"encoding/json"
	"io"
	"path/filepath"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// SocketPath returns the path of the socket of the daemon that serves home.
func SocketPath(home string) string { return client.SocketPath(home) }

// LogPath returns the path of the log of a daemon that was started automatically.
func LogPath(home string) string { return filepath.Join(home, "daemon.log") }

// DefaultIdle is the idle time after which a daemon that was started automatically exits.
const DefaultIdle = 5 * time.Minute

// Options configures Serve.
type Options struct {
	Home    string        // absolute
	Version string        // of this build, for status
	Idle    time.Duration // idle time without live sandboxes after which the daemon exits; 0 is never
	// Memory is the soft limit of the daemon's own memory, in bytes; 0 derives it from the control group and the
	// host's memory.
	Memory int64
	// RealUID and RealGID are the IDs of the daemon outside its own user namespace; -1 if it has none.
	RealUID, RealGID int
	// UserHome is the user's home from the environment: ~ in a policy, in addition to that of the user database.
	UserHome string
	// UserConfig and UserPath are the user's XDG_CONFIG_HOME and PATH, for git.
	UserConfig, UserPath string
	// ExecPath is the directory of helper programs that are not built in; "" is that of the running program.
	ExecPath string
	// Ready receives one line when the daemon serves or has failed, and is then closed. It is set for a daemon that
	// was started automatically, which logs to LogPath and waits for a predecessor to exit; it is nil for one in the
	// foreground, which logs to Stderr and fails at once.
	Ready  io.WriteCloser
	Stderr io.Writer
	// Log configures the log. The zero value is text with level info.
	Log Log
	// Warnings are lines to log at the start.
	Warnings []string
	// Defaults are settings of new sandboxes.
	Defaults Defaults
	// HTTP configures a TCP listener of the API in addition to the home's socket. It must not be used with Ready.
	HTTP HTTP
}

// ready is the line on Options.Ready.
type ready struct {
	OK    bool        `json:"ok,omitempty"`
	Error *wire.Error `json:"error,omitempty"`
}

// tell reports err, or success, to the process that started the daemon.
func tell(w io.WriteCloser, err error) {
	m := ready{OK: err == nil}
	if err != nil {
		m.Error = &wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
	}
	_ = json.NewEncoder(w).Encode(m) // the starting process may be gone, which does no harm
	_ = w.Close()
}
