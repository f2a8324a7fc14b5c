//go:build linux

package engine

import (
	"context"
	"path"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
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
// with by refs/coppice/base/COMMIT, for as long as one of them is there, so that a fork costs none;
// what was last taken out of one by refs/coppice/box/ID/tip and work, which go with it.
const (
	refTip  = "tip"
	refWork = "work"
)

// baseRef holds a commit that sandboxes began with.
func baseRef(commit string) repo.Ref { return repo.Ref("refs/coppice/base/" + commit) }

// boxRef holds what was taken out of a sandbox; without what, it is all that there is of one.
func boxRef(id timeline.SandboxID, what ...string) repo.Ref {
	return repo.Ref(path.Join(append([]string{"refs/coppice/box", string(id)}, what...)...))
}

// branchOf is the branch that a sandbox begins on. Not every name of a sandbox can be
// part of a branch's.
func branchOf(name string) (repo.Ref, error) {
	ref, err := repo.ParseBranch("coppice/" + name)
	if err != nil {
		return "", fault.New(fault.Invalid, "no branch can be called coppice/%s", name).Because(err).
			WithHint("choose a name without .., .lock, or a dot at its end; or have no repository in the sandbox: --no-repo")
	}
	return ref, nil
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
		return nil, fault.New(fault.Conflict, "%s is another repository than the one that sandbox %s was made for", rec.Repo.Top, rec.Name).
			WithHint("its git directory was %s", rec.Repo.Common)
	}
	return r, nil
}

func wireRepo(r *meta.Repo) *wire.Repo {
	if r == nil {
		return nil
	}
	w := &wire.Repo{Top: r.Top, Dir: r.Dir, Branch: r.Branch, Base: r.Base, From: r.From}
	if r.Start != r.Base {
		w.Start = r.Start
	}
	return w
}

// inRepo finds the repository that a request is about, says in the record what a sandbox
// has of it, and holds the commits that it needs.
func (e *Engine) inRepo(ctx context.Context, req *wire.RepoRequest, rec *meta.Sandbox) (*repo.Repo, error) {
	branch, err := branchOf(rec.Name)
	if err != nil {
		return nil, err
	}
	r, err := e.Repos.Open(ctx, req.Dir)
	if err != nil {
		return nil, err
	}
	at := req.At
	if at == "" {
		at = "HEAD"
	}
	base, err := r.Commit(ctx, at)
	if err != nil {
		return nil, err
	}
	rec.Repo = &meta.Repo{Top: r.Top, Common: r.Common, Dir: req.Dir, Branch: branch.Short(), Base: string(base), Start: string(base)}
	if base == r.Head.Commit && r.Head.Branch != "" {
		rec.Repo.From = r.Head.Branch.Short()
	}
	return r, hold(ctx, r, base)
}

// hold has commits stay in a repository for as long as a sandbox began with them.
func hold(ctx context.Context, r *repo.Repo, commits ...repo.OID) error {
	for _, c := range commits {
		all, err := r.Refs(ctx, baseRef(string(c)))
		if err == nil && len(all) == 0 {
			err = r.SetRef(ctx, baseRef(string(c)), c, "", "coppice: a sandbox begins here")
		}
		if err != nil {
			return fault.Wrap(err, "hold commit %s", c)
		}
	}
	return nil
}

// leaveRepo drops the references that a removed sandbox had in the user's repository. Its
// record is gone already.
func (e *Engine) leaveRepo(ctx context.Context, rec *meta.Sandbox) error {
	if rec.Repo == nil {
		return nil
	}
	r, err := e.repoOf(ctx, rec)
	if err != nil {
		return err
	}
	if err := r.DropRefs(ctx, boxRef(rec.ID)); err != nil {
		return err
	}
	all, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, c := range []string{rec.Repo.Base, rec.Repo.Start} {
		if slices.ContainsFunc(all, func(o meta.Sandbox) bool {
			return o.Repo != nil && o.Repo.Common == rec.Repo.Common && (o.Repo.Base == c || o.Repo.Start == c)
		}) {
			continue
		}
		if err := r.DropRefs(ctx, baseRef(c)); err != nil {
			return err
		}
	}
	return nil
}
