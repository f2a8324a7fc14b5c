//go:build linux

package egress

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// PolicyPatience is the timeout of requests to a keeper about its gate, such as setting a policy.
const PolicyPatience = 10 * time.Second

// Box is the keeper of a live sandbox, as far as egress control needs it.
type Box interface {
	// Gone returns a channel that is closed when the keeper has exited.
	Gone() <-chan struct{}
	// Net returns the open connections, the counters and the pending requests. Unavailable: the keeper has exited.
	// Unsupported: the tier has no gate.
	Net(ctx context.Context) (wire.NetNow, error)
	// SetPolicy puts policies in force, each until its end; connections that are no longer allowed are cut.
	// Unsupported: the tier has no gate.
	SetPolicy(ctx context.Context, phases []policies.Phase) error
	// Ran waits until a process has run since the clock was since, 0 being the start, and returns the clock.
	// Unavailable: the keeper has exited.
	Ran(ctx context.Context, since uint64) (clock uint64, err error)
	// Ports lists the TCP ports that processes listen on.
	Ports(ctx context.Context) (wire.PortsResult, error)
	// DialPort connects to a listening port of the sandbox. NotFound: no process listens there.
	DialPort(ctx context.Context, port int) (net.Conn, error)
}

// Held is a locked sandbox, and the only access to what its lock guards. It must not be used after Unlock.
type Held interface {
	// Proof is the lock itself.
	Proof() *sandbox.Held
	// Box returns the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// StartAgain starts the supervised command of a sandbox without a box, and returns the box. If the command can no
	// longer be run, why is the reason, and b and err are nil.
	StartAgain(ctx context.Context, rec *meta.Sandbox) (b Box, why *fault.Error, err error)
	// Unlock releases the lock.
	Unlock()
}

// Sandboxes finds sandboxes. The engine implements it.
type Sandboxes interface {
	// Live returns a sandbox by name or ID, and its box: nil if it has none. what names the operation, for the error
	// message of a concurrent caller.
	Live(ctx context.Context, name, what string) (Box, meta.Sandbox, error)
	// Acquire returns a sandbox by name or ID, locked for the operation what, as in Live. The caller must unlock it.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Use notes that a sandbox is in use, until done is called: it is not stopped for being idle.
	Use(id timeline.SandboxID) (done func())
	// Dir is the directory of a sandbox.
	Dir(id timeline.SandboxID) string
	// Mask returns the layer that hides places of a sandbox, and contains its decoys; "" if there is none.
	Mask(ctx context.Context, rec *meta.Sandbox) (string, error)
	// Journal returns where gate and keeper of a sandbox write events.
	Journal(id timeline.SandboxID) journal.Place
}

// Records are the records of sandboxes.
type Records interface {
	// Sandbox returns a sandbox by name or ID, or a NotFound error.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// UpdateSandbox applies change to the record of a sandbox, and stores it. If change fails, the record stays
	// unchanged and the error is returned.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}

// Recorder writes records to the ledger. audit.Book implements it.
type Recorder interface {
	// Drafts returns records of a sandbox, described by rec.
	Drafts(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) []ledger.Draft
	// Record writes records of a sandbox, described by rec. They are on disk when it returns.
	Record(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) error
	// Do writes records of what fn is about to do, then calls fn. If they cannot be written, it returns an error
	// without calling fn. If fn fails, it records that the operation was undone, and returns the error of fn.
	Do(ctx context.Context, drafts []ledger.Draft, fn func(context.Context) error) error
}

// Config configures New. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Records   Records
	Recorder  Recorder
	Policies  *policies.Policies
	Cleaners  *audit.Cleaners // remove secrets from records
	Feed      *events.Bus     // receives events
	FS        vfs.FS          // for writes of persistent files
	Homes     []string        // home directories of users, for decoys
	Rand      io.Reader
	// Go runs a function in the background. Its context ends with the engine, which waits for it.
	Go func(func(context.Context))
	// Caller returns the name of the caller of an operation, for the ledger; "" if it has none.
	Caller func(context.Context) string
	// AnswerGrants approves or denies pending requests that would carry a secret, by their places.
	AnswerGrants func(ctx context.Context, name string, places []string, allow bool) ([]wire.NetQuestion, error)
	// EndTrial ends the trial that a process of a sandbox asked for, after a change of the sandbox: see package
	// tournament.
	EndTrial func(id timeline.SandboxID, why string)
	Now      func() time.Time
	Log      *slog.Logger
}

// Control is the egress control of all sandboxes of a home. New creates one. All methods are safe for concurrent use.
type Control struct {
	config Config // never changed
}

// New returns a Control.
func New(c Config) *Control { return &Control{config: c} }

// follow calls fn with the events of a box's journal that match q, until ctx or the box ends. It includes the last
// event that the box wrote.
func (c *Control) follow(
	ctx context.Context, id timeline.SandboxID, b Box, q journal.Query, fn func(wire.NetEvent),
) error {
	alive, cancel := context.WithCancel(ctx)
	var gone sync.WaitGroup
	defer gone.Wait()
	defer cancel()
	gone.Go(func() {
		select {
		case <-b.Gone():
			cancel()
		case <-alive.Done():
		}
	})
	told := 0
	at := c.config.Sandboxes.Journal(id)
	err := journal.Follow(alive, at, q, func(ev wire.NetEvent) error {
		if ev.Kind != "" { // an event without a kind means that no later event is missed
			told++
			fn(ev)
		}
		return nil
	})
	if alive.Err() == nil || ctx.Err() != nil {
		return err
	}
	evs, err := journal.Read(at, q)
	for _, ev := range evs[min(told, len(evs)):] {
		fn(ev)
	}
	return err
}
