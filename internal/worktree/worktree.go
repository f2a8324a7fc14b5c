//go:build linux

package worktree

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// workspace is the tier in which a sandbox consists of only the work tree.
	workspace = string(policy.Workspace)
	// me is the user of a sandbox that has the IDs of the daemon's user.
	me = "me"
)

// Maker creates the records of sandboxes.
type Maker interface {
	// First creates the first snapshot of a sandbox, on parent. It does not record it.
	First(
		ctx context.Context, rec *meta.Sandbox, parent timeline.SnapshotID, message string,
	) (timeline.Snapshot, error)
	// Create records a sandbox with its first snapshot and the snapshot's route, in the ledger and in the
	// database. The intent ends with it.
	Create(
		ctx context.Context, rec *meta.Sandbox, first timeline.Snapshot, on timeline.Route, intent int64,
	) error
}

// Stacks are the layers, which other packages create and read too.
type Stacks interface {
	// NewLayer names a layer that is about to be created. Until made is called, garbage collection keeps the
	// layer although it has no record.
	NewLayer() (id timeline.LayerID, made func(), err error)
	// Dirs returns the directories of the layers that make up a snapshot, topmost first.
	Dirs(ctx context.Context, id timeline.SnapshotID) ([]string, error)
	// MayBeDeep reports that the chain below a snapshot may need merging.
	MayBeDeep(id timeline.SnapshotID)
}

// Config configures New. All fields are required.
type Config struct {
	Maker  Maker
	Stacks Stacks
	DB     *meta.DB
	Layers *layer.Store
	Bases  *bases.Bases
	Refs   *gitrefs.Refs
	Keep   sync.Locker // while it is held, no layer is removed
	// Open finds the repository that contains a host directory.
	Open func(ctx context.Context, dir string) (*repo.Repo, error)
	// Plain reports whether the roots of a driver are copies, in which files do not have the inodes of the
	// layers. It is true for an unknown driver.
	Plain    func(driver string) bool
	Home     string // COPPICE_HOME
	UID, GID uint32 // of the daemon's user, on the host
	Now      func() time.Time
	Log      *slog.Logger
}

// Trees creates sandboxes that work on repositories. Create one with New. Its methods are safe for concurrent
// use.
type Trees struct {
	c Config // never changed
}

// New returns a Trees.
func New(c Config) *Trees { return &Trees{c: c} }

// Repository opens the repository of a sandbox. Invalid: the sandbox has none. Conflict: another repository is in
// its place.
func (t *Trees) Repository(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error) {
	if rec.Repo == nil {
		return nil, fault.New(fault.Invalid, "sandbox %s has no git repository", rec.Name).
			WithHint("create a sandbox in the repository's directory: coppice create")
	}
	r, err := t.c.Open(ctx, rec.Repo.Top)
	switch {
	case err != nil:
		return nil, fault.Wrap(err, "open the repository of sandbox %s", rec.Name)
	case r.Common != rec.Repo.Common:
		return nil, fault.New(fault.Conflict, "%s is not the repository that sandbox %s was created for",
			rec.Repo.Top, rec.Name).
			WithHint("its git directory was %s", rec.Repo.Common)
	}
	return r, nil
}
