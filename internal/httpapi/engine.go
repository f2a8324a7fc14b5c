package httpapi

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
)

// Engine is what the routes need. All errors carry a fault.Kind; names may be
// ids. Every method may be called from several goroutines at once.
//
// The context ends when the client goes away, except for Exec.
type Engine interface {
	// Create makes a sandbox. It reads req.Tar before it returns. progress is
	// never nil, is cheap, and is called from one goroutine at a time.
	Create(ctx context.Context, req wire.CreateRequest, progress func(wire.Progress)) (wire.Sandbox, error)
	List(ctx context.Context) ([]wire.Sandbox, error)
	Status(ctx context.Context, name string) (wire.StatusResult, error)
	// Remove gives the names that were removed, also together with an error.
	// Without force a sandbox with running commands is fault.Conflict.
	Remove(ctx context.Context, names []string, force bool) ([]string, error)
	// Stop ends all processes of a sandbox and captures what they left.
	Stop(ctx context.Context, name string) (wire.StopResult, error)
	Probe(ctx context.Context) (wire.ProbeReport, error)

	// Exec runs a command. stream carries whole frames both ways: the engine
	// reads Stdin, StdinEOF, Resize and Signal from it, and writes Started,
	// Stdout, Stderr and Dropped, each frame in one Write, from any goroutine.
	// The first frame (Request) was read already, the last one (Exit, or Failed
	// for an error) is written by the caller from the result. An error of
	// stream means that the client is gone: the engine then ends the command's
	// stdin or hangs its terminal up, sees the command through all the same, and
	// captures what it changed. ctx ends when the daemon stops, which must not
	// harm the command. Exec does not return while it reads stream: one whose
	// Read may block has a SetReadDeadline, which Exec leaves in the past.
	Exec(ctx context.Context, name string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)

	Log(ctx context.Context, name string) (wire.LogResult, error)
	Head(ctx context.Context, name string) (string, error)
	Branches(ctx context.Context, name string) (wire.BranchesResult, error)
	Show(ctx context.Context, name, ref string) (wire.ShowResult, error)
	Diff(ctx context.Context, name string, req wire.DiffRequest) (wire.DiffResult, error)
	// Patch writes the same difference as unified diffs.
	Patch(ctx context.Context, name string, req wire.DiffRequest, w io.Writer) error

	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	Checkout(ctx context.Context, name, ref string) (wire.MoveResult, error)
	Undo(ctx context.Context, name string, n int) (wire.MoveResult, error) // n >= 1
	Redo(ctx context.Context, name string) (wire.MoveResult, error)
	// DeleteSnapshot gives the head.
	DeleteSnapshot(ctx context.Context, name, ref string) (string, error)

	Tags(ctx context.Context, name string) (map[string]string, error)
	SetTag(ctx context.Context, name, tag, ref string) (wire.TagResult, error) // ref "" is HEAD
	DeleteTag(ctx context.Context, name, tag string) error

	GC(ctx context.Context, req wire.GCRequest, progress func(wire.Progress)) (wire.GCResult, error)
	// Verify checks one sandbox, or with name "" the whole store. Damage is a
	// result, not an error.
	Verify(ctx context.Context, name string, progress func(wire.Progress)) (wire.VerifyResult, error)
	Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error)
}
