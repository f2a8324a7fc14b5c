package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
)

// Proposals on their way between repositories of the daemon's host and other clones. What
// needs the user's credentials and network, the fetching and pushing, is not done here.
type travel interface {
	// Sending says what is to be pushed of a sandbox that was proposed.
	Sending(ctx context.Context, req wire.SendRequest) (wire.Sending, error)
	// Sent notes that it was.
	Sent(ctx context.Context, req wire.SentRequest) error
	// Receive looks at what was fetched, and takes it in when nothing is wrong with it.
	Receive(ctx context.Context, req wire.ReceiveRequest) (wire.Received, error)
	// Received looks anew at what was taken in.
	Received(ctx context.Context, at wire.Travelled) (wire.Received, error)
	// ReceivedProposals lists what was taken in.
	ReceivedProposals(ctx context.Context, dir string) (wire.ReceivedList, error)
	// PulledDiff, PulledPatch and PulledApply are GitDiff, GitPatch and GitApply of what was
	// taken in.
	PulledDiff(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest) (wire.GitDiff, error)
	PulledPatch(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error
	PulledApply(ctx context.Context, at wire.Travelled, req wire.GitApplyRequest) (wire.GitApplied, error)
}

// addTravel adds what proposals travel by. They are the owner's: they are about any
// repository that the daemon's user has.
func (s *Server) addTravel(api huma.API) {
	e := s.opt.Engine
	const at = "/v1/proposals"
	plain(s, api, operation("POST", at+"/sending", "sending", "What is to be pushed of a sandbox that was proposed", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SendRequest }) (wire.Sending, error) {
			return e.Sending(ctx, in.Body)
		})
	silent(s, api, operation("POST", at+"/sent", "sent", "Note what was pushed", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SentRequest }) error { return e.Sent(ctx, in.Body) })
	plain(s, api, operation("POST", at+"/receive", "receive", "Check a proposal that was fetched, and take it in", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.ReceiveRequest }) (wire.Received, error) {
			return e.Receive(ctx, in.Body)
		})
	plain(s, api, operation("GET", at, "listProposals", "The proposals that were taken into a repository", tagGit, auth.Admin),
		func(ctx context.Context, in *struct {
			Dir string `query:"dir" doc:"a directory in its work tree"`
		}) (wire.ReceivedList, error) {
			return e.ReceivedProposals(ctx, in.Dir)
		})
	plain(s, api, operation("POST", at+"/show", "showProposal", "A proposal that was taken in, checked anew", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.Travelled }) (wire.Received, error) {
			return e.Received(ctx, in.Body)
		})
	plain(s, api, operation("POST", at+"/diff", "diffProposal", "What a proposal that was taken in changes", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.TravelledDiff }) (wire.GitDiff, error) {
			return e.PulledDiff(ctx, in.Body.Travelled, in.Body.GitDiffRequest)
		})
	op := operation("POST", at+"/patch", "patchProposal", "The same as a patch", tagGit, auth.Admin)
	answers(&op, http.StatusOK, "text/x-diff", "the patch, and an error that comes late in the trailer "+errorTail, text())
	raw(s, api, op, func(in *struct{ Body wire.TravelledDiff }, w http.ResponseWriter, r *http.Request) {
		s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error {
			return e.PulledPatch(ctx, in.Body.Travelled, in.Body.GitDiffRequest, pw)
		})
	})
	plain(s, api, replayable(operation("POST", at+"/apply", "applyProposal", "Put a proposal that was taken in onto a branch", tagGit, auth.Admin)),
		func(ctx context.Context, in *struct{ Body wire.TravelledApply }) (wire.GitApplied, error) {
			return e.PulledApply(ctx, in.Body.Travelled, in.Body.GitApplyRequest)
		})
}
