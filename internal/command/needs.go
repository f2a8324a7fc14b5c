//go:build linux

package command

import (
	"context"
	"io"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Box is the keeper of a live sandbox, as far as commands need it. Equal values mean the same keeper.
type Box interface {
	Keeper
	Processes
}

// Keeper starts commands and holds their results.
type Keeper interface {
	// Exec runs a command, or attaches to one. Frames are sent over the returned stream, which the caller closes. The
	// last frame is an Ended, or a wire.Error. Exec returns Unavailable if the keeper has exited.
	Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error)
	// Execs lists running commands, and commands started with Keep that have exited and are not forgotten: these have
	// an Exit.
	Execs(ctx context.Context) ([]wire.ExecInfo, error)
	// Wait waits for the exit of a command. It returns NotFound if the command is unknown, and Unavailable if the
	// keeper has exited.
	Wait(ctx context.Context, exec string) (Ended, error)
	// Forget discards the exit of a command that was started with Keep, once the exit is recorded.
	Forget(ctx context.Context, exec string) error
	// Signal sends a signal ("TERM") to a running command.
	Signal(ctx context.Context, exec, name string) error
	// Cancel starts to end a running command: SIGTERM, and SIGKILL two seconds later. It does not wait for the exit.
	Cancel(ctx context.Context, exec string) error
	// Input sends r to the input of a running command, and closes the input if eof is set.
	Input(ctx context.Context, exec string, r io.Reader, eof bool) error
	// Active waits until a process has run after the clock had the value since (0 is before everything), and returns
	// the clock. It returns Unavailable if the keeper has exited.
	Active(ctx context.Context, since uint64) (clock uint64, err error)
	// Stop ends all processes, with SIGTERM and after grace with SIGKILL, and then the keeper.
	Stop(ctx context.Context, grace time.Duration) error
	// Gone returns a channel that is closed when the keeper has exited.
	Gone() <-chan struct{}
}

// Processes gives access to all processes of a box.
type Processes interface {
	// Processes lists the processes. It returns Unavailable if the keeper has exited.
	Processes(ctx context.Context) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process. It returns NotFound if the process has exited, or
	// its PID belongs to another one.
	SignalProcess(ctx context.Context, pid int, sig wire.ProcessSignal) error
}

// Sandboxes finds sandboxes, and carries out what follows from the exits of their commands. The engine implements it.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock. what names the operation in the error that concurrent
	// callers get. The caller unlocks.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Use marks a sandbox as in use until done is called: it is not stopped as idle.
	Use(id timeline.SandboxID) (done func())
	// Remove removes a sandbox and kills its processes.
	Remove(ctx context.Context, id timeline.SandboxID) error
	// Halted reports whether a sandbox was stopped since a time because it used a honeytoken.
	Halted(rec *meta.Sandbox, since time.Time) bool
}

// Memory stores the memory of the processes of sandboxes. Package images implements it.
type Memory interface {
	// MayKeep refuses a sandbox whose memory cannot be stored.
	MayKeep(rec *meta.Sandbox) error
	// KeepEvery starts to store the memory of a box at an interval until the box has exited, and
	// returns at once.
	KeepEvery(id timeline.SandboxID, b images.Live, every time.Duration)
}

// Sandbox is a sandbox whose lock can be taken again.
type Sandbox interface {
	// Acquire takes the lock, and waits as long as ctx allows. The sandbox may have been removed
	// meanwhile.
	Acquire(ctx context.Context, what string) (Held, error)
}

// Held is a sandbox whose lock the caller holds. It must not be used after Unlock.
type Held interface {
	// Proof returns the lock itself.
	Proof() *sandbox.Held
	// Sandbox returns the sandbox, whose lock can be taken again after Unlock.
	Sandbox() Sandbox
	// Box returns the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// Start starts the box of the sandbox unless it has one, and records the start. The records of more may still be in
	// progress when it returns; the caller waits for them with Pending.
	Start(ctx context.Context, rec *meta.Sandbox, more ...audit.Statement) (Box, *audit.Pending, error)
	// StartOther waits until the keeper of the box has exited, which failed announced, and starts another box. If the
	// keeper continues to run, it returns failed.
	StartOther(ctx context.Context, rec *meta.Sandbox, failed error) (Box, error)
	// Capture takes a snapshot if anything has changed. With an error, Taken says whether there is a snapshot
	// nevertheless: the processes may not have been resumed after it.
	Capture(ctx context.Context, rec *meta.Sandbox, n Note) (Taken, error)
	// Look looks for changes without pausing any process.
	Look(ctx context.Context, rec *meta.Sandbox) (Look, error)
	// EndPrograms returns the records of the box's programs that are written with the exit of a command. The caller
	// writes them and calls Written; no other records of programs are written before that.
	EndPrograms(ctx context.Context, rec *meta.Sandbox) *audit.EndingPrograms
	// Unlock releases the lock.
	Unlock()
}

// Note says why and how a snapshot is taken.
type Note struct {
	Cause   timeline.Cause
	Message string
	Exit    *int // exit code of the command that has exited; nil: none
	Alone   bool // no process is left
	Aside   bool // do not take a snapshot if only times of directories changed
	// With returns the records to write with the snapshot, if there is one; nil: none.
	With func(Taken) []audit.Statement
}

// Taken is the result of a capture.
type Taken struct {
	ID       timeline.SnapshotID // the new snapshot, or HEAD if nothing changed
	Changed  bool                // there is a new snapshot
	Paths    int                 // the number of paths that changed
	Recorded bool                // the statements of Note.With are recorded
	// Changes returns the changes, as far as they are known, with secrets redacted; not nil if Changed.
	Changes func(audit.Cleaner) []format.Change
}

// Look is the result of looking at a live root.
type Look struct {
	layer.Glance
	Since  time.Time // when changes were first seen since the last capture; zero: none were seen
	Mapped bool      // a file may have changed without a trace
	Last   time.Time // when the last capture started
}

// Records stores the records of sandboxes.
type Records interface {
	// Sandbox finds a sandbox by name or id. It returns NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// UpdateSandbox stores the record of a sandbox as edited by change. If change fails, the record is
	// not changed, and its error is returned.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}
