package client

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/program"
)

// Options are the options of Start.
type Options struct {
	Home     string       // an absolute path, created if missing
	Programs *program.Set // has coppice-broker
	// Env is the environment of the broker: that of the owner's session, in which commands of stores run.
	Env []string
	// Idle is how long the broker runs without registrations, lines and connections; 0 is 60 s.
	Idle time.Duration
}

// startPatience ends the wait for a broker that hangs. One that starts may wait for an earlier one to exit.
const startPatience = time.Minute

// DefaultIdle is how long a broker runs without work.
const DefaultIdle = time.Minute

// Start starts the broker of a home, and returns once it serves. It does nothing if one runs. It must be called outside
// the daemon's namespaces: commands of stores run in those of the broker. The broker outlives the caller.
func Start(ctx context.Context, o Options) error {
	if _, err := Dial(o.Home).Status(ctx); err == nil || ctx.Err() != nil {
		return err
	}
	exe, err := o.Programs.File(program.Broker)
	if err != nil {
		return err
	}
	// The broker lives longer than the user's shell, and would hold what that has open.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fault.Wrap(err, "start the broker of secrets")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fault.Wrap(err, "start the broker of secrets")
	}
	defer r.Close()
	ready, err := program.Guard(exe, w)
	w.Close()
	if err != nil {
		return err
	}
	idle := o.Idle
	if idle == 0 {
		idle = DefaultIdle
	}
	cmd := &exec.Cmd{Path: program.Path(exe), Args: []string{string(program.Broker), o.Home, idle.String()}, Env: o.Env,
		Dir: "/", ExtraFiles: []*os.File{ready}, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	if cmd.Env == nil {
		cmd.Env = []string{} // nil is the environment of this process
	}
	err = cmd.Start()
	ready.Close()
	if err != nil {
		return fault.Wrap(fault.OfHost(err), "start the broker of secrets")
	}
	_ = cmd.Process.Release() // it outlives this process, and init reaps it
	deadline := time.Now().Add(startPatience)
	if at, ok := ctx.Deadline(); ok && at.Before(deadline) {
		deadline = at
	}
	if err := r.SetReadDeadline(deadline); err != nil {
		return fault.Wrap(err, "start the broker of secrets")
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return answerOf(r, o.Home)
}

// Ready is what a broker writes to descriptor 3 once it serves, or cannot.
type Ready struct {
	Problem *Problem `json:"problem,omitempty"`
}

// answerOf waits for what the broker says.
func answerOf(r io.Reader, home string) error {
	var m Ready
	err := json.NewDecoder(r).Decode(&m)
	switch {
	case os.IsTimeout(err):
		return fault.New(fault.Timeout, "the broker of secrets did not start in time").WithHint("see %s", LogPath(home))
	case err != nil:
		return fault.New(fault.Unavailable, "the broker of secrets exited before it was ready").
			WithHint("see %s", LogPath(home))
	case m.Problem != nil:
		return &fault.Error{Kind: fault.Kind(m.Problem.Kind), Message: m.Problem.Message, Hint: m.Problem.Hint}
	}
	return nil
}

// LogPath returns the path of the log of a home's broker.
func LogPath(home string) string { return filepath.Join(home, "run", "broker.log") }
