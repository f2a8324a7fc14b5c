//go:build linux

package gitwork

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// workspace is the tier without its own root file system: a sandbox has only the work tree, and commands start
// in it.
const workspace = string(policy.Workspace)

// API is the part of the client API that git work needs: the methods are those of client.Client, with the same
// contracts. name is a name or an ID.
type API interface {
	// Exec runs a command and waits for it to exit.
	Exec(ctx context.Context, name string, req wire.ExecRequest, st client.Streams) (wire.Exit, error)
	// Commit takes a snapshot of the live state.
	Commit(ctx context.Context, name, message string) (wire.CommitResult, error)
	// Checkout rewinds a sandbox to a snapshot, and captures the live state first.
	Checkout(ctx context.Context, name string, req wire.CheckoutRequest) (wire.MoveResult, error)
	// Trial runs a command in a temporary fork of a sandbox. A command that fails is not an error.
	Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error)
	// Policy returns the current policy.
	Policy(ctx context.Context, name string) (wire.PolicyResult, error)
	// ExportLedger writes the records of a sandbox to w, as a bundle that third parties can verify.
	ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error
	// LedgerCheckpoint returns the signed checkpoint of the log.
	LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error)
}

// Layers reads the files of snapshots.
type Layers interface {
	// Present captures the live state of a sandbox, if it has changed, and returns the record of the sandbox with its
	// current snapshot.
	Present(ctx context.Context, ref string) (meta.Sandbox, timeline.SnapshotID, error)
	// Changed calls changed for each path at or below top in which a snapshot of a sandbox differs from the start of
	// the sandbox, and then use with the files of the snapshot. No layer is removed before Changed returns. It
	// returns an error of use unchanged.
	Changed(
		ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID, top string,
		changed func(*layer.Change) error, use func(*layer.View) error,
	) error
	// History returns the history of a sandbox, and the digests of its own layers on the paths to the given
	// snapshots. A layer that is not finalized yet has none.
	History(
		ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID,
	) (*timeline.History, map[timeline.SnapshotID][]string, error)
}

// Work reads and writes the records of sandboxes that work on a repository.
type Work interface {
	// Sandbox returns a sandbox by name or ID, or a NotFound error.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// Head returns the current snapshot of a sandbox.
	Head(ctx context.Context, ref string) (timeline.SnapshotID, error)
	// UpdateSandbox changes the record of a sandbox in one transaction.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
	// Repository opens the repository of a sandbox. Invalid: it has none. Conflict: another repository is in its
	// place.
	Repository(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error)
	// Running returns the number of running processes of a sandbox.
	Running(ctx context.Context, id timeline.SandboxID) (int, error)
	// CancelExec starts to stop a running command, and does not wait; NotFound if it has exited.
	CancelExec(ctx context.Context, name, exec string) error
	// HoldBase sets the reference that keeps a base commit of sandboxes in a repository.
	HoldBase(ctx context.Context, r *repo.Repo, commit repo.OID) error
	// ReleaseBase deletes that reference if no sandbox needs the commit.
	ReleaseBase(ctx context.Context, r *repo.Repo, commit repo.OID) error
}

// Settings are named strings that persist.
type Settings interface {
	// Setting returns a setting; "" if it was never set.
	Setting(ctx context.Context, name string) (string, error)
	// SetSetting stores a setting.
	SetSetting(ctx context.Context, name, value string) error
}

// Config configures New. All fields are required.
type Config struct {
	API      API
	Layers   Layers
	Work     Work
	Book     *audit.Book
	Settings Settings
	// Scratch returns a directory used only by the daemon. It exists once a repository was opened.
	Scratch func() string
	// CheckPaths refuses more paths than one comparison may select.
	CheckPaths func(paths []string) error
	Now        func() time.Time
	Log        *slog.Logger
}

// Git does the git work. Create one with New. Its methods are safe for concurrent use.
type Git struct {
	config Config // never changed

	signing sync.Mutex // held while the settings of signers are read and written

	mu    sync.Mutex
	taken map[timeline.SandboxID]*taking // guarded by mu
}

// New returns a Git.
func New(c Config) *Git { return &Git{config: c, taken: map[timeline.SandboxID]*taking{}} }

// taking is the export state of a sandbox.
type taking struct {
	turn chan struct{} // one token: its holder may export
	last *Collected    // the last export; guarded by turn
}

// of returns the export state of a sandbox.
func (g *Git) of(id timeline.SandboxID) *taking {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.taken[id]
	if t == nil {
		t = &taking{turn: make(chan struct{}, 1)}
		t.turn <- struct{}{}
		g.taken[id] = t
	}
	return t
}

// Forget drops the state of a removed sandbox.
func (g *Git) Forget(id timeline.SandboxID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.taken, id)
}

// takes waits for the caller's turn to export. The caller must call done.
func (t *taking) takes(ctx context.Context) (done func(), err error) {
	select {
	case <-t.turn:
		return func() { t.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Below gitrefs.Box, TipRef holds the last exported HEAD of a sandbox, and WorkRef the commit with its uncommitted
// changes.
const (
	TipRef  = "tip"
	WorkRef = "work"
)

// Person returns the author that a repository's git is configured with, or Coppice if there is none.
func Person(ctx context.Context, r *repo.Repo) repo.Person {
	who, err := r.User(ctx)
	if err != nil {
		return repo.Person{Name: "coppice", Email: "coppice@localhost"}
	}
	return who
}

// WireRepo returns the repository of a sandbox in its wire form; nil if there is none.
func WireRepo(r *meta.Repo) *wire.Repo {
	if r == nil {
		return nil
	}
	w := &wire.Repo{Top: r.Top, Dir: r.Dir, Branch: r.Branch, Base: r.Base, From: r.From}
	if r.Start != r.Base {
		w.Start = r.Start
	}
	return w
}
