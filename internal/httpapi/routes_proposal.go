package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// addProposals adds the operations on proposals and trials.
func (s *Server) addProposals(api huma.API) {
	const at = box + "/git"
	plain(s, api,
		operation("POST", at+"/propose", "propose",
			"Propose the changes of a sandbox as a branch with a report", tagGit, auth.Admin),
		func(ctx context.Context, in *maySend[wire.ProposeRequest]) (wire.Proposed, error) {
			if limited(auth.From(ctx)) {
				return wire.Proposed{},
					fault.New(fault.Denied, "a token that is limited to some sandboxes cannot change the host's repositories").
						WithHint("on the daemon's machine: coppice git propose %s", in.Name)
			}
			ctx, cancel := s.bounded(ctx)
			defer cancel()
			return s.opt.Repositories.Propose(ctx, in.Name, orZero(in.Body))
		})
	op := operation("GET", at+"/proposal", "exportProposal",
		"Download the newest proposal: report, patch, policy, ledger", tagGit, auth.Read)
	answers(&op, http.StatusOK, asTar, "the files, see docs/git.md", nil)
	raw(s, api, op, s.proposal)
	plain(s, api,
		operation("POST", at+"/rebase", "rebase", "Rebase the changes of a sandbox onto another commit",
			tagGit, auth.Operate),
		func(ctx context.Context, in *maySend[wire.RebaseRequest]) (wire.Rebased, error) {
			ctx, cancel := s.bounded(ctx)
			defer cancel()
			return s.opt.Repositories.Rebase(ctx, in.Name, orZero(in.Body))
		})
	plain(s, api,
		operation("POST", box+"/trial", "trial", "Run a command in a temporary fork",
			tagSandboxes, auth.Operate),
		func(ctx context.Context, in *sent[wire.TrialRequest]) (wire.Trial, error) {
			ctx, cancel := s.bounded(ctx)
			defer cancel()
			return s.opt.Moves.Trial(ctx, in.Name, in.Body)
		})
}

// proposal sends the files of a proposal. An error after the first byte is in the trailer.
func (s *Server) proposal(in *Named, w http.ResponseWriter, r *http.Request) {
	out := &begun{w: w, start: func() {
		harmless(w.Header(), asTar, "proposal.tar")
		w.Header().Set("Trailer", errorTail)
	}}
	err := s.opt.Repositories.ExportProposal(r.Context(), in.Name, out)
	switch {
	case err == nil:
	case !out.yes:
		s.fail(w, r, err)
	default:
		b, _ := json.Marshal(s.wireError(r.Method+" "+r.URL.Path, err)) // strings
		w.Header().Set(errorTail, string(b))
	}
}
