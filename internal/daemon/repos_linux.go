package daemon

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
)

// repos opens repositories with the git and the configuration of the daemon's user.
type repos struct {
	user    repo.Env
	scratch string // directory of desks, used by this daemon only

	mu  sync.Mutex
	git *repo.Git // guarded by mu; nil until it is first needed and found
}

// newRepos removes leftovers of a killed daemon.
func newRepos(c engineConfig) (*repos, error) {
	r := &repos{user: repo.Env{Home: c.UserHome, Config: c.UserConfig, Path: c.UserPath},
		scratch: filepath.Join(c.Home, "git")}
	if err := os.RemoveAll(r.scratch); err != nil {
		return nil, fault.Wrap(err, "remove leftover files of repositories")
	}
	return r, nil
}

// Open implements engine.Repos.
func (r *repos) Open(ctx context.Context, dir string) (*repo.Repo, error) {
	g, err := r.found(ctx)
	if err != nil {
		return nil, err
	}
	return repo.Open(ctx, g, dir, repo.Options{Scratch: r.scratch})
}

// Scratch implements engine.Repos.
func (r *repos) Scratch() string { return r.scratch }

func (r *repos) found(ctx context.Context) (*repo.Git, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.git != nil {
		return r.git, nil
	}
	if err := os.MkdirAll(r.scratch, 0o700); err != nil {
		return nil, fault.Wrap(err, "create a directory for repositories")
	}
	g, err := repo.Find(ctx, "", r.user)
	if err == nil {
		r.git = g
	}
	return g, err
}
