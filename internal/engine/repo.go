//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Repos opens the git repositories of the host; see package repo.
type Repos interface {
	// Open finds the repository that a directory lies in.
	Open(ctx context.Context, dir string) (*repo.Repo, error)
	// Scratch is an existing directory of the daemon's alone, once Open has returned
	// without an error. What is in it goes when the daemon starts.
	Scratch() string
}

// In the user's repository, what sandboxes need is held by references: what they began
// with by refs/coppice/base/COMMIT/HOME, for as long as one of them is there, so that a fork costs none;
// what was last taken out of one by gitwork.BoxRef, which go with it.

// baseRef holds a commit that sandboxes of this home began with: another home's are not
// ours to drop.
func (e *Engine) baseRef(ctx context.Context, commit string) (repo.Ref, error) {
	id, err := e.homeID(ctx)
	return repo.Ref("refs/coppice/base/" + commit + "/" + id), err
}

// settingHome names the setting by which a home's references are known in repositories.
const settingHome = "home_id"

// homeID gives it, which is made up when it is first asked for.
func (e *Engine) homeID(ctx context.Context) (string, error) {
	e.naming.Lock()
	defer e.naming.Unlock()
	id, err := e.DB.Setting(ctx, settingHome)
	if err != nil || id != "" {
		return id, err
	}
	made, err := timeline.NewSandboxID(e.Rand)
	if err != nil {
		return "", err
	}
	return string(made), e.DB.SetSetting(ctx, settingHome, string(made))
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
