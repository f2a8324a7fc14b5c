//go:build linux

package travel

import (
	"context"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sending returns the references to push for a proposed sandbox, each with its value on the remote at the last push
// or pull, so that the push overwrites nothing else. If the request has an artifact or asks for layers, the layers
// are recorded in the repository first.
func (t *Travel) Sending(ctx context.Context, req wire.SendRequest) (res wire.Sending, err error) {
	rec, err := t.c.DB.Sandbox(ctx, req.Name)
	if err != nil {
		return res, err
	}
	r, err := t.c.Sandboxes.Repository(ctx, &rec)
	if err != nil {
		return res, err
	}
	tr, err := t.trip(ctx, wire.Travelled{Dir: r.Top, Remote: req.Remote, Name: rec.Name})
	if err != nil {
		return res, err
	}
	switch {
	case req.Artifact != nil:
		if err := t.recordArtifact(ctx, tr, &rec, req.Artifact); err != nil {
			return res, err
		}
		req.Layers = true
	case req.Layers:
		if res.Bytes, err = t.packLayers(ctx, tr, &rec, req.MaxBytes); err != nil {
			return res, err
		}
	}
	here, err := tr.at(ctx, tr.here)
	if err != nil {
		return res, err
	}
	if here[kindHeads] == "" || here[kindProposals] == "" {
		return res, fault.New(fault.NotFound, "sandbox %s has no proposal", rec.Name).
			WithHint("propose it first: coppice git propose %s", rec.Name)
	}
	seen, err := tr.at(ctx, tr.seen)
	if err != nil {
		return res, err
	}
	res.Top = r.Top
	for _, kind := range kinds() {
		if kind != kindLayers || req.Layers {
			res.Refs = append(res.Refs,
				wire.SendRef{Ref: string(tr.here(kind)), To: string(here[kind]), Seen: string(seen[kind])})
		}
	}
	if old := seen[kindProposals]; old != "" {
		ours, err := r.Within(ctx, old, here[kindProposals])
		if err != nil {
			return res, err
		}
		res.Foreign = !ours
	}
	return res, nil
}

// Sent records that references were pushed: from then on they are the known state of the remote.
func (t *Travel) Sent(ctx context.Context, req wire.SentRequest) error {
	tr, err := t.trip(ctx, req.Travelled)
	if err != nil {
		return err
	}
	seen, err := tr.at(ctx, tr.seen)
	if err != nil {
		return err
	}
	var moves []repo.RefMove
	for _, kind := range kinds() {
		i := slices.IndexFunc(req.Refs, func(s wire.SendRef) bool { return s.Ref == string(tr.here(kind)) })
		if i < 0 {
			continue
		}
		to, err := repo.ParseOID(req.Refs[i].To)
		if err != nil {
			return err
		}
		moves = append(moves, repo.RefMove{Ref: tr.seen(kind), To: to, Old: seen[kind]})
	}
	if len(moves) == 0 {
		return fault.New(fault.Invalid, "no pushed reference was given")
	}
	return tr.repo.MoveRefs(ctx, "coppice: pushed to "+tr.Remote, moves...)
}

// ReceivedProposals lists the proposals that were pulled into a repository or pushed from it, by remote and name.
func (t *Travel) ReceivedProposals(ctx context.Context, dir string) (res wire.ReceivedList, err error) {
	res.Proposals = []wire.ReceivedItem{}
	r, err := t.c.Repos.Open(ctx, dir)
	if err != nil {
		return res, err
	}
	const below = "refs/coppice/remotes"
	all, err := r.Refs(ctx, below)
	if err != nil {
		return res, err
	}
	for ref, id := range all {
		rest, _ := strings.CutPrefix(string(ref), below+"/")
		i := strings.LastIndex(rest, "/"+kindProposals+"/")
		if i < 0 {
			continue
		}
		it := wire.ReceivedItem{Remote: rest[:i], Name: rest[i+len("/"+kindProposals+"/"):], Proposal: string(id)}
		work, both := all[repo.Ref(below+"/"+it.Remote+"/"+kindHeads+"/"+it.Name)]
		if it.Work = string(work); both && timeline.ValidName(it.Name) == nil {
			res.Proposals = append(res.Proposals, it)
		}
	}
	slices.SortFunc(res.Proposals, func(a, b wire.ReceivedItem) int {
		return strings.Compare(a.Remote+"/"+a.Name, b.Remote+"/"+b.Name)
	})
	return res, nil
}
