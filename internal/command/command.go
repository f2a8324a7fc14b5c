//go:build linux

package command

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// command is one start of a command in a sandbox. It is followed by the client that is attached to it (Exec), or by
// the Runner: if the client asked for that (kept), or if it is the sandbox's supervised command. Its state only
// advances:
//
//	opening ──► running ──► ending ──► settled
//	   └──────────────────────────────────▲ it did not start
//
// It is open until it is settled. The open commands are stored in the database with settingAgreed, so that after a
// crash the next daemon knows the commands whose exits it has to find.
type command struct {
	id      string
	sandbox timeline.SandboxID
	at      time.Time           // when it was started; zero: unknown
	before  timeline.SnapshotID // HEAD at that time; "": unknown
	found   bool                // an earlier daemon started it

	req   wire.ExecRequest // how it was started, as far as it is known
	run   wire.Run         // the same for a supervised command
	most  Evidence         // what is recorded of it at most
	begun int              // how many commands of the sandbox had been started, including this one; -1: unknown

	// done is closed when the exit is fully processed, or when the command was started again. exit, err and next are
	// final then.
	done chan struct{}
	exit wire.Exit
	err  error
	next *command // of a supervised command: the start after this one; nil: none

	terms  terms         // of automatic captures while it runs; guarded by the sandbox's lock
	drop   chan struct{} // of a kept command: closed when newer ones evict it
	halted bool          // of a supervised command: it must not be started again; guarded by the sandbox's lock

	// The fields below are guarded by Register.mu.
	state   state
	seq     int64         // of the record of its start; 0: unknown
	denials int64         // denials recorded of its sandbox since its start
	paths   int           // paths captured automatically since its start
	relays  int           // how many attached clients will settle it
	end     Ended         // set in state ending and later
	ended   chan struct{} // closed when end is set
}

// state is the state of a command.
type state int

const (
	opening state = iota // its start is being recorded
	running              // its start is recorded
	ending               // its exit is known
	settled              // its exit is recorded, or it did not start
)

// Ended is the exit of a command, as returned by Box.Wait and sent in the last frame of Box.Exec.
type Ended struct {
	wire.Exit
	Alone   bool `json:"alone,omitempty"`   // no process was left when it was reaped
	Stopped bool `json:"stopped,omitempty"` // the box was being stopped at the time
	TTY     bool `json:"tty,omitempty"`     // it had a terminal

	Resources wire.Resources  `json:"resources,omitzero"`
	Env       []string        `json:"env,omitempty"` // the environment that was set for it
	Output    []wire.Recorded `json:"-"`             // the recorded part of its output
}

const (
	// exitUnknown is the exit code of a command whose exit no daemon saw.
	exitUnknown = 255
	// stoppedMeanwhile is the reason for a command that was killed with its box.
	stoppedMeanwhile = "the sandbox was stopped while the command ran"
)

// newCommand returns a command whose start is about to be recorded.
func newCommand(sandbox timeline.SandboxID, id string, at time.Time, before timeline.SnapshotID) *command {
	return &command{
		id: id, sandbox: sandbox, at: at, before: before, begun: -1,
		done: make(chan struct{}), drop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// foundCommand returns a command that an earlier daemon started, according to a record.
func foundCommand(n audit.OpenCommand) *command {
	c := newCommand(n.Sandbox, n.ID, n.At, n.Before)
	c.found, c.seq, c.paths, c.state = true, n.Seq, n.Paths, running
	return c
}

// result waits for done, and returns the result of the command.
func (c *command) result(ctx context.Context) (wire.Exit, error) {
	select {
	case <-c.done:
		return c.exit, c.err
	case <-ctx.Done():
		return wire.Exit{}, fault.Wrap(context.Cause(ctx), "wait until the exit of the command is recorded")
	}
}

// killed returns the exit of a command whose box exited with it.
func killed(why string) Ended {
	return Ended{Exit: wire.Exit{Code: 128 + 9, Signal: "KILL", Message: why}}
}

// commandLine returns a command as it is shown to users.
func commandLine(cmd []string) string { return message.OfCommand(wire.ExecRequest{Cmd: cmd}) }

// Message returns the message of a snapshot that is taken after a command: message.OfCommand with secrets
// redacted.
func Message(ctx context.Context, m *audit.Cleaners, rec *meta.Sandbox, req wire.ExecRequest) string {
	c := m.For(ctx, rec, req.Env...)
	return message.OfCommand(wire.ExecRequest{Label: c.Redact(req.Label), Cmd: c.RecordArgs(req.Cmd)})
}

// Supervises reports whether a sandbox has a supervised command whose changes are captured
// automatically.
func Supervises(rec *meta.Sandbox) bool {
	return rec.Run != nil && rec.Run.Ended == nil && !rec.Run.Capture.Off
}
