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

// command is one start of a command in a sandbox. It is followed by the client that is attached to it
// (Exec), or by the Runner, because the client asked for that (kept) or because it is the sandbox's
// supervised command. Its state goes one way:
//
//	opening ──► running ──► ending ──► settled
//	   └──────────────────────────────────▲ it did not begin
//
// It is open until it is settled. Which are open is noted with settingAgreed, so that after a
// crash the next daemon knows those whose ends it has to find.
type command struct {
	id      string
	sandbox timeline.SandboxID
	at      time.Time           // when it began; zero: not known
	before  timeline.SnapshotID // HEAD then; "": not known
	found   bool                // an earlier daemon began it

	req   wire.ExecRequest // what it was started with, as far as is known
	run   wire.Run         // the same of a supervised command
	begun int              // how many commands of the sandbox had begun with it; -1: not known

	// done is closed when all that follows from its end is done, or that it was started again;
	// exit, err and next are final then.
	done chan struct{}
	exit wire.Exit
	err  error
	next *command // of a supervised command: the start that came after it; nil: none

	drop   chan struct{} // of a kept command: closed when newer ones take its place
	halted bool          // of a supervised command: it is not to be started again; guarded by the sandbox's lock

	// The rest is guarded by Register.mu.
	state   state
	seq     int64         // of the record of its beginning; 0: not known
	denials int64         // recorded of its sandbox since it began
	relays  int           // how many are attached and will see it through
	end     Ended         // once it is ending
	ended   chan struct{} // closed then
}

// state is how far a command has come.
type state int

const (
	opening state = iota // its beginning is being recorded
	running              // that is recorded
	ending               // its end is known
	settled              // its end is recorded, or it did not begin
)

// Ended is the end of a command as Box.Wait gives it, and as the last frame of Box.Exec tells it.
type Ended struct {
	wire.Exit
	Alone   bool `json:"alone,omitempty"`   // no process was left when it was reaped
	Stopped bool `json:"stopped,omitempty"` // the box was being stopped then
	TTY     bool `json:"tty,omitempty"`     // it had a terminal

	Resources wire.Resources  `json:"resources,omitzero"`
	Env       []string        `json:"env,omitempty"` // its own environment
	Output    []wire.Recorded `json:"-"`             // what was recorded of its output
}

const (
	// exitUnknown is the exit code of a command whose end no daemon saw.
	exitUnknown = 255
	// stoppedMeanwhile is what is said of a command that was killed with its box.
	stoppedMeanwhile = "the sandbox was stopped while the command ran"
)

// newCommand is a command that is about to be recorded as begun.
func newCommand(sandbox timeline.SandboxID, id string, at time.Time, before timeline.SnapshotID) *command {
	return &command{
		id: id, sandbox: sandbox, at: at, before: before, begun: -1,
		done: make(chan struct{}), drop: make(chan struct{}), ended: make(chan struct{}),
	}
}

// foundCommand is one that an earlier daemon began, as a record with the number seq tells.
func foundCommand(n audit.OpenCommand) *command {
	c := newCommand(n.Sandbox, n.ID, n.At, n.Before)
	c.found, c.seq, c.state = true, n.Seq, running
	return c
}

// result waits for done, and returns what the command came to.
func (c *command) result(ctx context.Context) (wire.Exit, error) {
	select {
	case <-c.done:
		return c.exit, c.err
	case <-ctx.Done():
		return wire.Exit{}, fault.Wrap(context.Cause(ctx), "wait until the exit of the command is recorded")
	}
}

// killed is the end of a command whose box ended with it.
func killed(why string) Ended {
	return Ended{Exit: wire.Exit{Code: 128 + 9, Signal: "KILL", Message: why}}
}

// commandLine is how a command is shown.
func commandLine(cmd []string) string { return message.OfCommand(wire.ExecRequest{Cmd: cmd}) }

// Message returns the message of a snapshot that is taken after a command: message.OfCommand without secrets.
func Message(ctx context.Context, m *audit.Cleaners, rec *meta.Sandbox, req wire.ExecRequest) string {
	c := m.For(ctx, rec, req.Env...)
	return message.OfCommand(wire.ExecRequest{Label: c.Redact(req.Label), Cmd: c.RecordArgs(req.Cmd)})
}

// Supervises reports whether a sandbox has a supervised command whose changes are captured by themselves.
func Supervises(rec *meta.Sandbox) bool {
	return rec.Run != nil && rec.Run.Ended == nil && !rec.Run.Capture.Off
}
