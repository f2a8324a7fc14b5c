//go:build linux

package travel

import (
	"context"
	"errors"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
)

// Receive checks a proposal that the user's git has fetched to the staging references, and sets the references of
// the remote to it if it is valid. If the request asks for layers in the repository, it creates a sandbox from
// them. The staging references are deleted when Receive returns, even after an error.
func (t *Travel) Receive(ctx context.Context, req wire.ReceiveRequest) (res wire.Received, err error) {
	tr, err := t.trip(ctx, req.Travelled)
	if err != nil {
		return res, err
	}
	staged, err := tr.at(ctx, tr.staging)
	if err != nil {
		return res, err
	}
	defer tr.clearStaging(ctx, &err)
	if staged[kindHeads] == "" || staged[kindProposals] == "" {
		return res, fault.New(fault.NotFound, "proposal %s not found on %s", tr.Name, tr.Remote).
			WithHint("list its proposals: coppice git pull %s", tr.Remote)
	}
	in, err := t.look(ctx, tr, staged[kindHeads], staged[kindProposals])
	if err != nil {
		return res, fault.Wrap(err, "read the references of %[2]s on %[1]s", tr.Remote, tr.Name)
	}
	res = in.received()
	res.HasLayers = staged[kindLayers] != ""
	if res.Signer, err = t.c.Git.Signer(ctx, in.log, req.Key); err != nil {
		return res, err
	}
	if req.Layers {
		list, err := in.packed(ctx, staged[kindLayers])
		if err != nil {
			return res, err
		}
		if list.Artifact != nil { // the layers are in a registry: see UnpackLayers
			res.Artifact = wireArtifact(list.Artifact)
		} else if res.Made, err = t.unpackLayers(ctx, in, list, t.inRepo(in, staged[kindLayers]), req.As); err != nil {
			return res, err
		}
	}
	if err = tr.take(ctx, staged); err != nil && res.Made != nil {
		err = errors.Join(err, t.c.API.Remove(context.WithoutCancel(ctx), res.Made.ID, true))
	}
	return res, err
}

// take sets the references of the remote to the fetched objects.
func (tr *trip) take(ctx context.Context, staged map[string]repo.OID) error {
	seen, err := tr.at(ctx, tr.seen)
	if err != nil {
		return err
	}
	var moves []repo.RefMove
	for _, kind := range kinds() {
		if staged[kind] != "" {
			moves = append(moves, repo.RefMove{Ref: tr.seen(kind), To: staged[kind], Old: seen[kind]})
		}
	}
	return tr.repo.MoveRefs(ctx, "coppice: pulled from "+tr.Remote, moves...)
}

// Received checks a pulled proposal again, and describes it.
func (t *Travel) Received(ctx context.Context, at wire.Travelled) (res wire.Received, err error) {
	in, err := t.pulled(ctx, at)
	if err != nil {
		return res, err
	}
	res = in.received()
	res.Signer, err = t.c.Git.Signer(ctx, in.log, "")
	return res, err
}

// pulled finds and checks a pulled proposal.
func (t *Travel) pulled(ctx context.Context, at wire.Travelled) (*incoming, error) {
	tr, err := t.trip(ctx, at)
	if err != nil {
		return nil, err
	}
	seen, err := tr.at(ctx, tr.seen)
	if err != nil {
		return nil, err
	}
	if seen[kindHeads] == "" || seen[kindProposals] == "" {
		return nil, fault.New(fault.NotFound, "proposal %s of %s not found in %s", tr.Name, tr.Remote, tr.repo.Top).
			WithHint("pull it: coppice git pull %s %s; list its proposals: coppice git pull %s", tr.Remote, tr.Name, tr.Remote)
	}
	return t.look(ctx, tr, seen[kindHeads], seen[kindProposals])
}

// received describes a checked proposal.
func (in *incoming) received() wire.Received {
	p := in.says
	res := wire.Received{Travelled: in.Travelled, Proposal: string(in.commit), Sandbox: string(in.log.Sandbox),
		Title: p.Title, Time: p.Time.UTC().Truncate(time.Second),
		Base: p.Base, Start: p.Start, Work: p.Work, From: p.From, Commits: in.commits, Files: p.Stat.Files,
		Added: p.Stat.Added, Deleted: p.Stat.Deleted,
		Records: in.log.Records, Bound: in.bound, Differs: in.differs, Summary: proposal.Summary(p),
		Report: string(proposal.Report(p, in.policy))}
	res.Marks = gitwork.WireMarks(in.marks, func(repo.Mark) bool { return false })
	if p.Start != p.Base {
		res.Warnings = append(res.Warnings,
			"it started from the author's uncommitted changes, which are not part of the proposal")
	}
	if p.Ledger.Lost {
		res.Warnings = append(res.Warnings, "records were lost on the author's host: the ledger is incomplete")
	}
	return res
}
