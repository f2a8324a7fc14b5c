// Package daemon is the process that owns a home: it listens on the home's socket, checks callers, assembles the
// engine from the packages below, and exits when it has been idle. It also has the client's half: Connect, which
// starts a daemon if none runs. Only the CLI imports it.
//
// The files in a home:
//
//	format       "coppice home 1\n": what the rest is
//	lock         flock of the daemon that serves this home; holds its pid
//	daemon.sock  the API, 0600
//	preview.key  signs links to ports, 0600; made with the first of them
//	daemon.log   what a daemon that was started by itself had to say
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
	Idle    time.Duration // stop after this long with nothing to do and nothing live; 0 is never
	// Memory is the soft limit of the daemon's own memory, in bytes; 0 derives one from
	// its control group and the host's memory.
	Memory int64
	// RealUID and RealGID are the IDs of the daemon outside its own user namespace; -1 if it has none.
	RealUID, RealGID int
	// UserHome is the user's home from the environment: ~ in a policy, in addition to that of the user database.
	UserHome string
	// UserConfig and UserPath are his XDG_CONFIG_HOME and PATH: for his git.
	UserConfig, UserPath string
	// ExecPath is the directory of helper programs that were not built in; "" is that of the
	// running program.
	ExecPath string
	// Ready receives one line when the daemon serves or has failed, and is then closed. It is set for a daemon that
	// was started automatically, which logs to LogPath and waits for a predecessor to exit; it is nil for one in the
	// foreground, which logs to Stderr and fails at once.
	Ready  io.WriteCloser
	Stderr io.Writer
	// HTTP is where else than on the home's socket the API is served; not with
	// Ready.
	HTTP HTTP
}

// ready is the line on Options.Ready.
type ready struct {
	OK    bool        `json:"ok,omitempty"`
	Error *wire.Error `json:"error,omitempty"`
}

// tell sends err, or that all is well, to whoever started the daemon.
func tell(w io.WriteCloser, err error) {
	m := ready{OK: err == nil}
	if err != nil {
		m.Error = &wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
	}
	_ = json.NewEncoder(w).Encode(m) // the starter may be gone; the daemon is not the worse for it
	_ = w.Close()
}
