//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/worktree"
)

// Repos opens the git repositories of the host; see package repo.
type Repos interface {
	// Open finds the repository that contains a directory.
	Open(ctx context.Context, dir string) (*repo.Repo, error)
	// Scratch returns a directory of the daemon, which exists once Open has succeeded. It is emptied when the daemon
	// starts.
	Scratch() string
}

// worktreeConfig returns the configuration of the Trees of an engine that has its Bases and refs.
func worktreeConfig(e *Engine) worktree.Config {
	return worktree.Config{
		Maker: worktreeCore{e}, Stacks: basesCore{e}, DB: e.DB, Layers: e.Layers, Bases: e.Bases, Refs: e.refs,
		Keep: e.shape.RLocker(), Home: e.Home, UID: e.UID, GID: e.GID, Log: e.Logger,
		Open:  func(ctx context.Context, dir string) (*repo.Repo, error) { return e.Repos.Open(ctx, dir) },
		Plain: func(driver string) bool { return e.Drivers[driver] == nil || e.Drivers[driver].Plain() },
		Now:   func() time.Time { return e.Now() },
	}
}

// worktreeCore adapts the engine to worktree.Maker.
type worktreeCore struct{ e *Engine }

// First makes the first snapshot of a sandbox.
func (c worktreeCore) First(
	ctx context.Context, rec *meta.Sandbox, parent timeline.SnapshotID, message string,
) (timeline.Snapshot, error) {
	return c.e.first(ctx, rec, parent, timeline.CauseImport, message)
}

// Create records a sandbox with its first snapshot and the route of that snapshot.
func (c worktreeCore) Create(
	ctx context.Context, rec *meta.Sandbox, first timeline.Snapshot, on timeline.Route, intent int64,
) error {
	e := c.e
	return e.Book.Do(ctx, e.Book.Drafts(ctx, rec, e.createRecord(rec, "")), func(ctx context.Context) error {
		return e.DB.CreateSandboxOn(ctx, *rec, first, on, intent)
	})
}
