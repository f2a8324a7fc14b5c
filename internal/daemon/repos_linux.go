package daemon

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
)

// repos opens the repositories of whoever the daemon runs for, with his git.
type repos struct {
	user    repo.Env
	scratch string // where desks are made; nobody else's

	mu  sync.Mutex
	git *repo.Git // guarded by mu; found when it is first needed, and looked for again while there is none
}

// newRepos sweeps away what a killed daemon left of its work.
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
