//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A proposal travels as references of the user's repository, which the user's own git
// pushes and fetches: the daemon has neither credentials nor network for that. Here is
// decided what is pushed, and what was fetched is looked at before it is taken in.
//
//	refs/heads/coppice/NAME                     the branch, of a proposal of ours
//	refs/coppice/proposals/NAME                 the proposal
//	refs/coppice/layers/NAME                    packed layers, where they were asked for
//	refs/coppice/remotes/REMOTE/KIND/NAME       what REMOTE had of each when it was last pushed
//	                                            to or pulled from: KIND is heads, proposals, layers
//	refs/coppice/staging/REMOTE/NAME/KIND       what was fetched and not looked at yet

// The kinds of references that travel.
const (
	kindHeads     = "heads"
	kindProposals = "proposals"
	kindLayers    = "layers"
)

var travelKinds = []string{kindHeads, kindProposals, kindLayers}

// travel is a proposal on its way between a repository and one of its remotes.
type travel struct {
	wire.Travelled
	repo *repo.Repo
}

// travelOf opens the repository and checks the names, which become parts of references.
func (e *Engine) travelOf(ctx context.Context, at wire.Travelled) (*travel, error) {
	if err := timeline.ValidName(at.Name); err != nil {
		return nil, err
	}
	if _, err := repo.ParseRef("refs/coppice/staging/" + at.Remote + "/" + at.Name + "/" + kindHeads); err != nil ||
		at.Remote == "" {
		return nil, fault.New(fault.Invalid, "proposals cannot travel by a remote called %.80q", at.Remote).Because(err).
			WithHint("call it otherwise: git remote rename OLD NEW")
	}
	r, err := e.Repos.Open(ctx, at.Dir)
	if err != nil {
		return nil, err
	}
	return &travel{at, r}, nil
}

// seen is the reference with what the remote had.
func (t *travel) seen(kind string) repo.Ref {
	return repo.Ref("refs/coppice/remotes/" + t.Remote + "/" + kind + "/" + t.Name)
}

// staging is the reference with what was fetched; without a kind, it is all that was.
func (t *travel) staging(kind string) repo.Ref {
	return repo.Ref(strings.TrimSuffix(wire.StagingRef(t.Remote, t.Name, kind), "/"))
}

// here is the reference of a proposal of ours.
func (t *travel) here(kind string) repo.Ref { return repo.Ref(wire.TravelRef(kind, t.Name)) }

// at gives what some references name; "" is none.
func (t *travel) at(ctx context.Context, of func(kind string) repo.Ref) (map[string]repo.OID, error) {
	found := map[string]repo.OID{}
	for _, kind := range travelKinds {
		all, err := t.repo.Refs(ctx, of(kind))
		if err != nil {
			return nil, err
		}
		found[kind] = all[of(kind)]
	}
	return found, nil
}

// Sending says what is to be pushed of a sandbox that was proposed, and what the remote had
// of it when it was last seen, so that nothing else is written over.
func (e *Engine) Sending(ctx context.Context, req wire.SendRequest) (res wire.Sending, err error) {
	rec, err := e.DB.Sandbox(ctx, req.Name)
	if err != nil {
		return res, err
	}
	r, err := e.repoOf(ctx, &rec)
	if err != nil {
		return res, err
	}
	t, err := e.travelOf(ctx, wire.Travelled{Dir: r.Top, Remote: req.Remote, Name: rec.Name})
	if err != nil {
		return res, err
	}
	switch {
	case req.Artifact != nil:
		if err := e.recordArtifact(ctx, t, &rec, req.Artifact); err != nil {
			return res, err
		}
		req.Layers = true
	case req.Layers:
		if res.Bytes, err = e.packLayers(ctx, t, &rec, req.MaxBytes); err != nil {
			return res, err
		}
	}
	here, err := t.at(ctx, t.here)
	if err != nil {
		return res, err
	}
	if here[kindHeads] == "" || here[kindProposals] == "" {
		return res, fault.New(fault.NotFound, "sandbox %s was not proposed", rec.Name).
			WithHint("do that first: coppice propose %s", rec.Name)
	}
	seen, err := t.at(ctx, t.seen)
	if err != nil {
		return res, err
	}
	res.Top = r.Top
	for _, kind := range travelKinds {
		if kind != kindLayers || req.Layers {
			res.Refs = append(res.Refs,
				wire.SendRef{Ref: string(t.here(kind)), To: string(here[kind]), Seen: string(seen[kind])})
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

// Sent notes that references were pushed, so that they are known as what the remote has.
func (e *Engine) Sent(ctx context.Context, req wire.SentRequest) error {
	t, err := e.travelOf(ctx, req.Travelled)
	if err != nil {
		return err
	}
	seen, err := t.at(ctx, t.seen)
	if err != nil {
		return err
	}
	var moves []repo.RefMove
	for _, kind := range travelKinds {
		i := slices.IndexFunc(req.Refs, func(s wire.SendRef) bool { return s.Ref == string(t.here(kind)) })
		if i < 0 {
			continue
		}
		to, err := repo.ParseOID(req.Refs[i].To)
		if err != nil {
			return err
		}
		moves = append(moves, repo.RefMove{Ref: t.seen(kind), To: to, Old: seen[kind]})
	}
	if len(moves) == 0 {
		return fault.New(fault.Invalid, "nothing is said to have been pushed")
	}
	return t.repo.MoveRefs(ctx, "coppice: pushed to "+t.Remote, moves...)
}

// ReceivedProposals lists what was pulled into a repository, or pushed from it.
func (e *Engine) ReceivedProposals(ctx context.Context, dir string) (res wire.ReceivedList, err error) {
	res.Proposals = []wire.ReceivedItem{}
	r, err := e.Repos.Open(ctx, dir)
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

// clearStaging drops what was fetched.
func (t *travel) clearStaging(ctx context.Context, errp *error) {
	*errp = errors.Join(*errp, t.repo.DropRefs(context.WithoutCancel(ctx), t.staging("")))
}
