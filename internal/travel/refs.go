//go:build linux

package travel

import (
	"context"
	"errors"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// A proposal is transferred as references of the user's repository, which the user's own git pushes and fetches.
// Travel decides which are pushed, and checks the fetched ones before it accepts them.
//
//	refs/heads/coppice/NAME                     branch of a local proposal
//	refs/coppice/proposals/NAME                 the proposal
//	refs/coppice/layers/NAME                    its packed layers, if the user pushes layers
//	refs/coppice/remotes/REMOTE/KIND/NAME       what REMOTE had of each KIND at the last push or pull:
//	                                            heads, proposals, layers
//	refs/coppice/staging/REMOTE/NAME/KIND       fetched, but not checked yet

// The kinds of references that are transferred.
const (
	kindHeads     = "heads"
	kindProposals = "proposals"
	kindLayers    = "layers"
)

// kinds returns the kinds of references that are transferred, in the order in which they are pushed.
func kinds() []string { return []string{kindHeads, kindProposals, kindLayers} }

// trip is the transfer of a proposal between a repository and one of its remotes.
type trip struct {
	wire.Travelled
	repo *repo.Repo
}

// trip opens the repository, and checks the names, which become parts of references.
func (t *Travel) trip(ctx context.Context, at wire.Travelled) (*trip, error) {
	if err := timeline.ValidName(at.Name); err != nil {
		return nil, err
	}
	if _, err := repo.ParseRef("refs/coppice/staging/" + at.Remote + "/" + at.Name + "/" + kindHeads); err != nil ||
		at.Remote == "" {
		return nil, fault.New(fault.Invalid, "invalid remote name %.80q", at.Remote).Because(err).
			WithHint("rename it: git remote rename OLD NEW")
	}
	r, err := t.c.Repos.Open(ctx, at.Dir)
	if err != nil {
		return nil, err
	}
	return &trip{at, r}, nil
}

// seen returns the reference to the remote's state at the last push or pull.
func (tr *trip) seen(kind string) repo.Ref {
	return repo.Ref("refs/coppice/remotes/" + tr.Remote + "/" + kind + "/" + tr.Name)
}

// staging returns the reference to a fetched object; without a kind, the prefix of all of them.
func (tr *trip) staging(kind string) repo.Ref {
	return repo.Ref(strings.TrimSuffix(wire.StagingRef(tr.Remote, tr.Name, kind), "/"))
}

// here returns the reference of a local proposal of a kind.
func (tr *trip) here(kind string) repo.Ref { return repo.Ref(wire.TravelRef(kind, tr.Name)) }

// at returns the object of each kind's reference; "" for a missing one.
func (tr *trip) at(ctx context.Context, of func(kind string) repo.Ref) (map[string]repo.OID, error) {
	found := map[string]repo.OID{}
	for _, kind := range kinds() {
		all, err := tr.repo.Refs(ctx, of(kind))
		if err != nil {
			return nil, err
		}
		found[kind] = all[of(kind)]
	}
	return found, nil
}

// clearStaging deletes the references to fetched objects, even after ctx has ended. It adds its error to *errp.
func (tr *trip) clearStaging(ctx context.Context, errp *error) {
	*errp = errors.Join(*errp, tr.repo.DropRefs(context.WithoutCancel(ctx), tr.staging("")))
}
