//go:build linux

package travel

import (
	"context"
	"errors"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// collected converts a pulled proposal to an export of a sandbox, so that it is compared and applied like one. It
// belongs to no sandbox of this host: operations on it are recorded in the ledger of the host.
func (in *incoming) collected() *gitwork.Collected {
	p := in.says
	return &gitwork.Collected{
		Rec: meta.Sandbox{ID: timeline.SandboxID(format.Host), Name: in.Remote + "/" + in.Name, Config: meta.Config{
			Repo: &meta.Repo{Top: in.repo.Top, Common: in.repo.Common, Dir: in.Dir, Branch: p.Branch, Base: p.Base,
				Start: p.Start, From: p.From}}},
		Repo: in.repo, Start: in.start, Tip: in.work, Work: in.work, Commits: in.commits,
		Snapshot: timeline.SnapshotID(p.Snapshot),
	}
}

// pulledAs finds and checks a pulled proposal. If work is not "", it must be the proposed commit, which the
// caller has reviewed.
func (t *Travel) pulledAs(ctx context.Context, at wire.Travelled, work string) (*gitwork.Collected, error) {
	in, err := t.pulled(ctx, at)
	if err != nil {
		return nil, err
	}
	if _, err := t.c.Git.Signer(ctx, in.log, ""); err != nil {
		return nil, err
	}
	if work != "" && work != string(in.work) {
		return nil, fault.New(fault.Conflict, "%s/%s was pulled again since the diff", at.Remote, at.Name).
			WithHint("review it again: coppice diff %s/%s", at.Remote, at.Name)
	}
	return in.collected(), nil
}

// PulledDiff is gitwork.Git.GitDiff for a pulled proposal.
func (t *Travel) PulledDiff(
	ctx context.Context, at wire.Travelled, req wire.GitDiffRequest,
) (out wire.GitDiff, err error) {
	c, err := t.pulledAs(ctx, at, req.Work)
	if err != nil {
		return out, err
	}
	return t.c.Git.DiffCollected(ctx, c, req)
}

// PulledPatch is gitwork.Git.GitPatch for a pulled proposal.
func (t *Travel) PulledPatch(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error {
	c, err := t.pulledAs(ctx, at, req.Work)
	if err != nil {
		return err
	}
	return t.c.Git.PatchCollected(ctx, c, req, w)
}

// PulledApply is gitwork.Git.GitApply for a pulled proposal.
func (t *Travel) PulledApply(
	ctx context.Context, at wire.Travelled, req wire.GitApplyRequest,
) (out wire.GitApplied, err error) {
	a, err := gitwork.ParseApply(req)
	if err != nil {
		return out, err
	}
	c, err := t.pulledAs(ctx, at, req.Work)
	if err != nil {
		return out, err
	}
	out, err = t.c.Git.ApplyCollected(ctx, c, a, req.Message)
	var conflicts *repo.Conflicts
	if errors.As(err, &conflicts) {
		err = fault.New(fault.KindOf(err), "%s conflicts with the branch; nothing was changed", c.Rec.Name).
			Because(conflicts).
			WithHint("ask the author to rebase it onto the branch (coppice git rebase, coppice git push); or resolve "+
				"the conflict yourself: git merge %.12s", c.Work)
	}
	return out, err
}
