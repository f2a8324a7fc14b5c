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

// PolicyPatience is how long a keeper has to answer a request about its gate, as to put a policy in
// force.
const PolicyPatience = 10 * time.Second

// Box is the keeper of a live sandbox, as far as egress control needs it.
type Box interface {
	// Gone is closed when the keeper has ended.
	Gone() <-chan struct{}
	// Net tells what is open, went through and waits for a person. Unavailable: the keeper has
	// ended. Unsupported: the tier has no gate.
	Net(ctx context.Context) (wire.NetNow, error)
	// SetPolicy puts policies in force, each until its end; connections that are not allowed any
	// more are cut. Unsupported: the tier has no gate.
	SetPolicy(ctx context.Context, phases []policies.Phase) error
	// Ran waits until a process has run since the clock was since, 0 being before everything,
	// and gives the clock. Unavailable: the keeper has ended.
	Ran(ctx context.Context, since uint64) (clock uint64, err error)
	// Ports lists the TCP ports that processes listen on.
	Ports(ctx context.Context) (wire.PortsResult, error)
	// DialPort connects to one of them and to nothing else. NotFound: nothing listens there.
	DialPort(ctx context.Context, port int) (net.Conn, error)
}

// Held is a sandbox whose lock the caller holds, and the only way to what the lock guards. It is
// not used after Unlock.
type Held interface {
	// Proof is the lock itself.
	Proof() *sandbox.Held
	// Box gives the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// StartAgain starts the supervised command of a sandbox that has no box, and gives the box.
	// If the command can no longer be run, why says so, and b and err are nil.
	StartAgain(ctx context.Context, rec *meta.Sandbox) (b Box, why *fault.Error, err error)
	// Unlock releases the lock.
	Unlock()
}

// Sandboxes finds sandboxes. The engine implements it.
type Sandboxes interface {
	// Live finds a sandbox by name or id, and its box: nil if it has none. what says for which
	// operation, for the message that another caller gets meanwhile.
	Live(ctx context.Context, name, what string) (Box, meta.Sandbox, error)
	// Acquire finds a sandbox by name or id and takes its lock, for what it says, as in Live. The
	// caller unlocks.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Use notes that a sandbox is in use, until done is called: it is not stopped for being idle.
	Use(id timeline.SandboxID) (done func())
	// Dir is the directory of a sandbox.
	Dir(id timeline.SandboxID) string
	// Mask returns the layer that hides places of a sandbox, and has files where decoys are; "" if
	// there is none.
	Mask(ctx context.Context, rec *meta.Sandbox) (string, error)
	// Journal is where gate and keeper of a sandbox tell what happens.
	Journal(id timeline.SandboxID) journal.Place
}

// Records are the records of sandboxes.
type Records interface {
	// Sandbox finds a sandbox by name or id; NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// UpdateSandbox has change edit the record of a sandbox, and stores it; an error of change, which
	// it returns, leaves it as it is.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}

// Recorder keeps the records of the ledger. audit.Book implements it.
type Recorder interface {
	// Drafts makes records of a sandbox as rec has it.
	Drafts(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) []ledger.Draft
	// Record writes records of a sandbox as rec has it. They are on the disk when it returns.
	Record(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) error
	// Do writes records of what fn is about to do, then calls fn. It returns without calling fn if
	// they cannot be written. If fn fails, it records that they did not come about, and returns the
	// error of fn.
	Do(ctx context.Context, drafts []ledger.Draft, fn func(context.Context) error) error
}

// Config is what a Control is made of. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Records   Records
	Recorder  Recorder
	Policies  *policies.Policies
	Cleaners  *audit.Cleaners // remove secrets from what is recorded
	Feed      *events.Bus     // hears what happens
	FS        vfs.FS          // what is kept is written through
	Homes     []string        // the homes of users, in which decoys lie
	Rand      io.Reader
	// Go runs a function in the background. Its context ends with the engine, which waits for it.
	Go func(func(context.Context))
	// Caller names the caller of an operation, for the ledger; "" if it has no name.
	Caller func(context.Context) string
	Now    func() time.Time
	Log    *slog.Logger
}

// Control is the egress control of all sandboxes of a home. Make one with New. All methods are
// safe for concurrent use.
type Control struct {
	config Config // never changed
}

// New makes a Control.
func New(c Config) *Control { return &Control{config: c} }

// follow calls fn with the events of a box's journal that match q, until ctx or the box ends. It
// includes the last event that the box wrote.
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
		if ev.Kind != "" { // else it says that nothing is missed from now on
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
