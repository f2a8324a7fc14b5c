package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
)

// addTravel adds the operations that send and receive proposals. Only the owner may use them: they work with any
// repository of the daemon's user.
func (s *Server) addTravel(api huma.API) {
	const at = "/v1/proposals"
	plain(s, api,
		operation("POST", at+"/sending", "sending", "List the references to push for a proposal",
			tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SendRequest }) (wire.Sending, error) {
			return s.opt.Proposals.Sending(ctx, in.Body)
		})
	silent(s, api, operation("POST", at+"/sent", "sent", "Record a push", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SentRequest }) error {
			return s.opt.Proposals.Sent(ctx, in.Body)
		})
	plain(s, api,
		operation("POST", at+"/receive", "receive", "Verify a fetched proposal and store it", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.ReceiveRequest }) (wire.Received, error) {
			return s.opt.Proposals.Receive(ctx, in.Body)
		})
	s.addPacked(api, at)
	plain(s, api,
		operation("GET", at, "listProposals", "List the proposals of a repository", tagGit, auth.Admin),
		func(ctx context.Context, in *struct {
			Dir string `query:"dir" doc:"a directory in the work tree"`
		}) (wire.ReceivedList, error) {
			return s.opt.Proposals.ReceivedProposals(ctx, in.Dir)
		})
	plain(s, api,
		operation("POST", at+"/show", "showProposal", "Show a pulled proposal, verified again", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.Travelled }) (wire.Received, error) {
			return s.opt.Proposals.Received(ctx, in.Body)
		})
	plain(s, api,
		operation("POST", at+"/diff", "diffProposal", "Compare a pulled proposal with its base", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.TravelledDiff }) (wire.GitDiff, error) {
			return s.opt.Proposals.PulledDiff(ctx, in.Body.Travelled, in.Body.GitDiffRequest)
		})
	op := operation("POST", at+"/patch", "patchProposal", "The same comparison as a patch", tagGit, auth.Admin)
	answers(&op, http.StatusOK, "text/x-diff", "the patch; a late error is in the trailer "+errorTail, text())
	raw(s, api, op, func(in *struct{ Body wire.TravelledDiff }, w http.ResponseWriter, r *http.Request) {
		s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error {
			return s.opt.Proposals.PulledPatch(ctx, in.Body.Travelled, in.Body.GitDiffRequest, pw)
		})
	})
	plain(s, api,
		replayable(operation("POST", at+"/apply", "applyProposal", "Apply a pulled proposal to a branch",
			tagGit, auth.Admin)),
		func(ctx context.Context, in *struct{ Body wire.TravelledApply }) (wire.GitApplied, error) {
			return s.opt.Proposals.PulledApply(ctx, in.Body.Travelled, in.Body.GitApplyRequest)
		})
}

// addPacked adds the operations that send and receive the layers that are not part of a repository.
func (s *Server) addPacked(api huma.API, at string) {
	plain(s, api,
		operation("GET", at+"/layers", "packedLayers", "List the layers of a sandbox to push", tagGit, auth.Admin),
		func(ctx context.Context, in *struct {
			Name string `query:"name" required:"true" doc:"name or id of the sandbox"`
		}) (wire.Packing, error) {
			return s.opt.LayerTravel.Packing(ctx, in.Name)
		})
	op := operation("POST", at+"/layer", "packLayer", "Download a packed layer", tagGit, auth.Admin)
	answers(&op, http.StatusOK, asZstd, "a tar archive, compressed with zstd; a late error is in the trailer "+errorTail,
		binary())
	raw(s, api, op, func(in *struct{ Body wire.PackRequest }, w http.ResponseWriter, r *http.Request) {
		s.send(w, r, asZstd,
			func(ctx context.Context, pw io.Writer) error { return s.opt.LayerTravel.PackLayer(ctx, in.Body, pw) })
	})
	op = streams(
		operation("PUT", at+"/layers", "unpackLayers", "Create a sandbox from the layers of a pulled proposal",
			tagGit, auth.Admin))
	answers(&op, http.StatusOK, asJSON, "the sandbox", schemaOf[wire.Sandbox](api))
	raw(s, api, op, func(in *struct {
		Dir    string `query:"dir" required:"true" doc:"a directory in the work tree that the proposal was pulled into"`
		Remote string `query:"remote" required:"true" doc:"the remote that the proposal was pulled from"`
		Name   string `query:"name" required:"true" doc:"the sandbox of the proposal"`
		As     string `query:"as" doc:"name of the new sandbox; the default is the name of the proposal"`
	}, w http.ResponseWriter, r *http.Request) {
		made, err := s.opt.LayerTravel.UnpackLayers(r.Context(),
			wire.Travelled{Dir: in.Dir, Remote: in.Remote, Name: in.Name}, in.As, r.Body)
		s.reply(w, r, made, err)
	})
	takes(api, op, "the packed layers, concatenated in the order that receive lists them",
		map[string]*huma.MediaType{asBytes: {Schema: binary()}})
}

// asZstd is a packed layer.
const asZstd = "application/zstd"
