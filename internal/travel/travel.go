//go:build linux

package travel

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// API is the part of the client API that Travel needs: the methods are those of client.Client, with the same
// contracts.
type API interface {
	// Create creates a sandbox.
	Create(ctx context.Context, req wire.CreateRequest, progress func(wire.Progress)) (wire.Sandbox, error)
	// Remove removes a sandbox; with force, even one with running commands.
	Remove(ctx context.Context, name string, force bool) error
}

// Sandboxes are operations on the sandboxes of this home that clients do not have.
type Sandboxes interface {
	// Acquire returns a sandbox by name or ID, locked until the caller calls release. what names the operation, for
	// the error message of a concurrent caller.
	Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error)
	// Describe describes a sandbox to clients.
	Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox
	// Repository opens the repository of a sandbox. Invalid: the sandbox has none. Conflict: another repository
	// is in its place.
	Repository(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error)
	// Stack returns the layers, and the mask, of a snapshot as a sandbox sees it.
	Stack(ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID) (rootspec.Stack, error)
}

// Stacks are the layers, which other packages create and read too.
type Stacks interface {
	// NewLayer names a layer that is about to be created. Until made is called, garbage collection keeps the
	// layer although it has no record.
	NewLayer() (id timeline.LayerID, made func(), err error)
	// MayBeDeep reports that the chain below a snapshot may need merging.
	MayBeDeep(id timeline.SnapshotID)
}

// Repos opens the git repositories of the host.
type Repos interface {
	// Open finds the repository that contains a directory.
	Open(ctx context.Context, dir string) (*repo.Repo, error)
	// Scratch returns a directory used only by the daemon, which exists once Open has succeeded.
	Scratch() string
}

// Config configures New. All fields are required.
type Config struct {
	API       API
	Sandboxes Sandboxes
	Stacks    Stacks
	Repos     Repos
	DB        *meta.DB
	Layers    *layer.Store
	Git       *gitwork.Git
	Book      *audit.Book
	Keep      sync.Locker                     // while it is held, no layer is removed
	Finalize  func(ctx context.Context) error // finalizes all layers, so that they have digests
	// RecordText truncates a text, and redacts secrets in it.
	RecordText func(text string) string
	Rand       io.Reader
	Now        func() time.Time
}

// Travel sends and receives proposals. Create one with New. Its methods are safe for concurrent use.
type Travel struct {
	c Config // never changed
}

// New returns a Travel.
func New(c Config) *Travel { return &Travel{c: c} }
