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

// Box is the keeper of a live sandbox, as far as commands need it. Values are compared: equal ones are
// the same keeper.
type Box interface {
	Keeper
	Processes
}

// Keeper starts commands and holds what becomes of them.
type Keeper interface {
	// Exec runs a command, or attaches to one; frames travel over the returned stream, which the caller
	// closes. The last one is an Ended, or a wire.Error. Unavailable: the keeper has ended.
	Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error)
	// Execs lists the commands that run, and those that were started with Keep, have ended and are not
	// forgotten: they have an Exit.
	Execs(ctx context.Context) ([]wire.ExecInfo, error)
	// Wait waits for the end of a command. NotFound: it is not known. Unavailable: the keeper has ended.
	Wait(ctx context.Context, exec string) (Ended, error)
	// Forget says that the end of a command that was started with Keep is recorded.
	Forget(ctx context.Context, exec string) error
	// Signal sends a signal ("TERM") to a running command.
	Signal(ctx context.Context, exec, name string) error
	// Cancel begins to end a running command: SIGTERM, two seconds, SIGKILL.
	Cancel(ctx context.Context, exec string) error
	// Input gives a running command what r holds, and with eof the end of input.
	Input(ctx context.Context, exec string, r io.Reader, eof bool) error
	// Active waits until a process has run since the clock was since, 0 being before everything, and
	// gives the clock. Unavailable: the keeper has ended.
	Active(ctx context.Context, since uint64) (clock uint64, err error)
	// Stop ends all processes and the keeper itself.
	Stop(ctx context.Context, grace time.Duration) error
	// Gone is closed when the keeper has ended.
	Gone() <-chan struct{}
}

// Processes are the processes of a box, of whichever command.
type Processes interface {
	// Processes lists them. Unavailable: the keeper has ended.
	Processes(ctx context.Context) (wire.ProcessesResult, error)
	// SignalProcess sends a signal to one process. NotFound: there is none, or it is another one.
	SignalProcess(ctx context.Context, pid int, sig wire.ProcessSignal) error
}

// Sandboxes finds sandboxes, and does to them what follows from the ends of commands. The engine
// implements it.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock. what names the operation for callers that
	// find the sandbox busy. The caller unlocks.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Use notes that a sandbox is in use, until done is called: it is not stopped for being idle.
	Use(id timeline.SandboxID) (done func())
	// Remove removes a sandbox and ends its processes.
	Remove(ctx context.Context, id timeline.SandboxID) error
	// Halted reports whether a sandbox was stopped since a time because it touched a decoy.
	Halted(rec *meta.Sandbox, since time.Time) bool
}

// Memory keeps what the processes of sandboxes have in memory. Package images implements it.
type Memory interface {
	// MayKeep refuses a sandbox of which the memory cannot be kept.
	MayKeep(rec *meta.Sandbox) error
	// KeepEvery has the memory of a box kept every so often until the box has ended, and returns at once.
	KeepEvery(id timeline.SandboxID, b images.Live, every time.Duration)
}

// Sandbox is a sandbox whose lock can be taken again.
type Sandbox interface {
	// Acquire takes the lock, for which it waits as long as ctx allows. The sandbox may have been removed
	// meanwhile.
	Acquire(ctx context.Context, what string) (Held, error)
}

// Held is a sandbox whose lock the caller holds. It is not used after Unlock.
type Held interface {
	// Proof is the lock itself.
	Proof() *sandbox.Held
	// Sandbox returns the sandbox, by which its lock can be taken again after Unlock.
	Sandbox() Sandbox
	// Box gives the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// Start makes sure that the sandbox has a box, and that its start is recorded. It returns while more is
	// still being recorded, for which the caller waits with Pending.
	Start(ctx context.Context, rec *meta.Sandbox, more ...audit.Statement) (Box, *audit.Pending, error)
	// StartOther replaces the box, whose keeper has ended, by another one.
	StartOther(ctx context.Context, rec *meta.Sandbox) (Box, error)
	// Capture takes a snapshot if anything has changed. With an error, Taken says whether there is one all
	// the same: the processes may be unable to go on after it.
	Capture(ctx context.Context, rec *meta.Sandbox, n Note) (Taken, error)
	// Look looks at what has changed without stopping any process.
	Look(ctx context.Context, rec *meta.Sandbox) (Look, error)
	// EndPrograms returns the records of the programs of the box that are to be written with the end of a
	// command. The caller writes them and calls Written; no other records of programs are written before.
	EndPrograms(ctx context.Context, rec *meta.Sandbox) *audit.EndingPrograms
	// Unlock releases the lock.
	Unlock()
}

// Note says why a snapshot is taken.
type Note struct {
	Cause   timeline.Cause
	Message string
	Exit    *int // of the command that has ended; nil: none has
	Alone   bool // no process is left
	Aside   bool // the times of directories alone are not worth a snapshot
	// With gives what is recorded with the snapshot, if there is one; nil: nothing.
	With func(Taken) []audit.Statement
}

// Taken is the outcome of a capture.
type Taken struct {
	ID      timeline.SnapshotID // the new snapshot, or HEAD when nothing changed
	Changed bool                // there is a new snapshot
	Paths   int                 // how many paths changed
	Told    bool                // what Note.With gave is recorded
	// Changes lists what changed, as far as it is known; not nil where Changed.
	Changes func(audit.Cleaner) []format.Change
}

// Look is what was seen of a live root.
type Look struct {
	layer.Glance
	Since  time.Time // when changes were first seen since the last capture; zero: none were
	Mapped bool      // a file may have changed without a trace
	Last   time.Time // when the last capture began
}

// Records are the records of sandboxes.
type Records interface {
	// Sandbox finds a sandbox by name or id; NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// UpdateSandbox has change edit the record of a sandbox, and stores it; an error of change, which
	// it returns, leaves it as it is.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}
