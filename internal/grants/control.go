//go:build linux

package grants

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Box is the keeper of a live sandbox, as far as grants need it.
type Box interface {
	// SetSecrets replaces the grants of the gate, and the placeholders of commands that start from now on. Unavailable:
	// requests of revoked grants have been cut, but no request can get a secret. Conflict: the inside does not trust the
	// gate's authority.
	SetSecrets(ctx context.Context, s plan.Secrets) error
	// Net returns the state of the gate, with the pending requests.
	Net(ctx context.Context) (wire.NetNow, error)
}

// Held is a locked sandbox. It must not be used after Unlock.
type Held interface {
	// Box returns the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// Unlock releases the lock.
	Unlock()
}

// Sandboxes finds sandboxes. The engine implements it.
type Sandboxes interface {
	// Acquire returns a sandbox by name or ID, locked for the operation what. The caller must unlock it.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Journal returns where the gate of a sandbox writes events.
	Journal(id timeline.SandboxID) journal.Place
}

// Store keeps the grants. meta.DB implements it.
type Store interface {
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	Grants(ctx context.Context, id timeline.SandboxID) ([]meta.Grant, error)
	GrantsIn(ctx context.Context, state string) ([]meta.Grant, error)
	PutGrant(ctx context.Context, g meta.Grant) error
	DropGrant(ctx context.Context, id timeline.SandboxID, name string) error
	Ticket(ctx context.Context, id timeline.SandboxID, fresh []byte) ([]byte, error)
	// Setting reads a setting; "" when it was never set.
	Setting(ctx context.Context, key string) (string, error)
	SetSetting(ctx context.Context, key, value string) error
}

// Broker is the process that has the values of secrets. client.Client implements it.
type Broker interface {
	// Shape returns the shape of a secret. It returns NotFound if the secret does not exist.
	Shape(ctx context.Context, secret string) (grant.Shape, error)
	// Register replaces what a sandbox may ask for.
	Register(ctx context.Context, r client.Registration) error
	// Withdraw ends the registration of a sandbox, and closes its lines. An unknown sandbox is not an error.
	Withdraw(ctx context.Context, sandbox string) error
	// Status describes the broker, with an identifier of its process.
	Status(ctx context.Context) (client.Status, error)
}

// Recorder writes records to the ledger. audit.Book implements it.
type Recorder interface {
	// Drafts returns records of a sandbox, described by rec.
	Drafts(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) []ledger.Draft
	// Do writes records of what fn is about to do, then calls fn. If they cannot be written, it returns an error
	// without calling fn. If fn fails, it records that the operation was undone, and returns the error of fn.
	Do(ctx context.Context, drafts []ledger.Draft, fn func(context.Context) error) error
}

// Config configures New. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Store     Store
	Broker    Broker
	Recorder  Recorder
	Socket    string // the broker's socket for gates
	Key       []byte // from which placeholders are derived
	Rand      io.Reader
	Now       func() time.Time
	Log       *slog.Logger
	// Caller returns the name of the caller of an operation, for the ledger; "" if it has none.
	Caller func(context.Context) string
	// Clean removes secrets from a text for the ledger.
	Clean func(string) string
}

// The timeouts of requests: to a keeper, and to the broker, which may have to ask a store.
const (
	boxPatience    = 10 * time.Second
	brokerPatience = 5 * time.Second
)

// Grants is the grants of all sandboxes of a home. New creates one. All methods are safe for concurrent use.
type Grants struct {
	config Config        // never changed
	wake   chan struct{} // has a token if Watch must look again

	consenting sync.Mutex // held while the consents are changed

	mu         sync.Mutex
	registered map[timeline.SandboxID]bool // sandboxes with a registration; false if it must be repeated
}

// New returns the Grants of a home.
func New(c Config) *Grants {
	return &Grants{config: c, wake: make(chan struct{}, 1), registered: map[timeline.SandboxID]bool{}}
}

// note notes whether a sandbox that should have a registration has one, and that Watch must look again.
func (c *Grants) note(id timeline.SandboxID, done bool) {
	c.mu.Lock()
	c.registered[id] = done
	c.mu.Unlock()
	c.look()
}

// look makes Watch look again.
func (c *Grants) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// forget notes that a sandbox needs no registration.
func (c *Grants) forget(id timeline.SandboxID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.registered, id)
}
