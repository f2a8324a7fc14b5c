//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
)

// Repos opens the git repositories of the host; see package repo.
type Repos interface {
	// Open finds the repository that a directory lies in.
	Open(ctx context.Context, dir string) (*repo.Repo, error)
	// Scratch is an existing directory of the daemon's alone, once Open has returned
	// without an error. What is in it goes when the daemon starts.
	Scratch() string
}

// repoOf opens the repository that a sandbox works on.
func (e *Engine) repoOf(ctx context.Context, rec *meta.Sandbox) (*repo.Repo, error) {
	if rec.Repo == nil {
		return nil, fault.New(fault.Invalid, "sandbox %s works on no git repository", rec.Name).
			WithHint("make one in the repository's directory: coppice create")
	}
	r, err := e.Repos.Open(ctx, rec.Repo.Top)
	switch {
	case err != nil:
		return nil, fault.Wrap(err, "open the repository of sandbox %s", rec.Name)
	case r.Common != rec.Repo.Common:
		return nil, fault.New(fault.Conflict, "%s is another repository than the one that sandbox %s was made for",
			rec.Repo.Top, rec.Name).
			WithHint("its git directory was %s", rec.Repo.Common)
	}
	return r, nil
}
