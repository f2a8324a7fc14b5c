// Package client talks with the broker of a home, the process that holds the values of secrets: HTTP with JSON over the
// socket ControlSocket. The command line stores secrets with it, and the daemon registers the grants of sandboxes. No
// call returns a value. It imports fault, grant, program and unixsock.
package client

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/program"
)

// The broker's sockets, relative to the home. Both accept processes of the home's owner only.
const (
	LineSocket    = "run/broker-line.sock" // of gates: see package line
	ControlSocket = "run/broker.sock"      // of Client
)

// Secret describes a secret. It has no part of the value but its length.
type Secret struct {
	Name        string    `json:"name"`
	Kind        string    `json:"kind,omitempty"` // a grant.Kind
	From        string    `json:"from"`           // as given to Set, such as age or file:/PATH; env:NAME is kept as age
	Length      int       `json:"length,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"` // equal for equal values of one home
	Created     time.Time `json:"created,omitzero"`
	Rotated     time.Time `json:"rotated,omitzero"`
	Grants      int       `json:"grants"` // that are registered
	// Problem says why the secret cannot be read, and Hint what to do; both are "" if it can. Only its Name and Grants
	// are known then. Secrets that are references are opened by Test, not by List.
	Problem string `json:"problem,omitempty"`
	Hint    string `json:"hint,omitempty"`
}

// Registration is what a sandbox may ask the broker for.
type Registration struct {
	Sandbox string    `json:"sandbox"`
	Ticket  []byte    `json:"ticket"` // 32 random bytes, which authorize the sandbox's keeper to open a line
	Grants  []Granted `json:"grants"`
}

// Granted is a grant of a sandbox.
type Granted struct {
	Name   string    `json:"name"`
	Secret string    `json:"secret"`
	Hosts  []string  `json:"hosts"`          // patterns, as in a grant.Item
	Until  time.Time `json:"until,omitzero"` // zero: it does not expire
}

// Status describes a running broker.
type Status struct {
	Boot string `json:"boot"` // random for each process: another one has no registrations
	PID  int    `json:"pid"`
}

// Options are the options of Start.
type Options struct {
	Home     string       // an absolute path, created if missing
	Programs *program.Set // has coppice-broker
	// Env is the environment of the broker: that of the owner's session, in which commands of stores run.
	Env []string
	// Idle is how long the broker runs without registrations, lines and connections; 0 is 60 s.
	Idle time.Duration
}

// Start starts the broker of a home, and returns once it serves. It does nothing if one runs. It must be called outside
// the daemon's namespaces: commands of stores run in those of the broker. The broker outlives the caller.
func Start(ctx context.Context, o Options) error { panic("not yet") }

// Client calls the broker of a home. It is safe for concurrent use. Every method returns Unavailable if none runs.
type Client struct {
	home string
}

// Dial returns the client of the broker of a home. It does not connect: each call does.
func Dial(home string) *Client { return &Client{home} }

// Set stores a secret, or replaces it, in which case gates get the new value with their next request. from is a source
// as in package store, or "" for age; kind is a grant.Kind, or "" for that of the value's shape. value is for age only.
// For env:NAME, Set reads the variable of this process, and stores its value as age does. Other sources are read once,
// and Set fails if that fails; it passes on the environment of this process to commands, and what the Vault program
// reads from it (VAULT_ADDR, VAULT_TOKEN and others).
func (c *Client) Set(ctx context.Context, name, from, kind string, value []byte) (Secret, error) { panic("not yet") }

// List returns all secrets, sorted by name.
func (c *Client) List(ctx context.Context) ([]Secret, error) { panic("not yet") }

// Remove removes a secret. Unless force is true, it returns Conflict while a grant of it is registered; the message
// names the sandboxes.
func (c *Client) Remove(ctx context.Context, name string, force bool) error { panic("not yet") }

// Test opens a secret, as a gate's request would, and describes it.
func (c *Client) Test(ctx context.Context, name string) (Secret, error) { panic("not yet") }

// Shape opens a secret, and returns the shape of its value. It has the kind that Set was given, if any. NotFound has a
// hint how to store the secret.
func (c *Client) Shape(ctx context.Context, secret string) (grant.Shape, error) { panic("not yet") }

// Register replaces the registration of a sandbox. Lines under the same ticket stay open, and drop the values of grants
// that are gone or were changed; lines under another ticket are closed.
func (c *Client) Register(ctx context.Context, r Registration) error { panic("not yet") }

// Withdraw removes the registration of a sandbox, closes its lines, and revokes the leases of its secrets. It returns
// nil for a sandbox that is not registered.
func (c *Client) Withdraw(ctx context.Context, sandbox string) error { panic("not yet") }

// Status describes the running broker.
func (c *Client) Status(ctx context.Context) (Status, error) { panic("not yet") }
