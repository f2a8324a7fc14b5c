package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
)

// addTravel adds what proposals travel by. They are the owner's: they are about any
// repository that the daemon's user has.
func (s *Server) addTravel(api huma.API) {
	const at = "/v1/proposals"
	plain(s, api,
		operation("POST", at+"/sending", "sending", "What is to be pushed of a sandbox that was proposed",
			tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SendRequest }) (wire.Sending, error) {
			return s.opt.Proposals.Sending(ctx, in.Body)
		})
	silent(s, api, operation("POST", at+"/sent", "sent", "Note what was pushed", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.SentRequest }) error {
			return s.opt.Proposals.Sent(ctx, in.Body)
		})
	plain(s, api,
		operation("POST", at+"/receive", "receive", "Check a proposal that was fetched, and take it in", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.ReceiveRequest }) (wire.Received, error) {
			return s.opt.Proposals.Receive(ctx, in.Body)
		})
	s.addPacked(api, at)
	plain(s, api,
		operation("GET", at, "listProposals", "The proposals that were taken into a repository", tagGit, auth.Admin),
		func(ctx context.Context, in *struct {
			Dir string `query:"dir" doc:"a directory in its work tree"`
		}) (wire.ReceivedList, error) {
			return s.opt.Proposals.ReceivedProposals(ctx, in.Dir)
		})
	plain(s, api,
		operation("POST", at+"/show", "showProposal", "A proposal that was taken in, checked anew", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.Travelled }) (wire.Received, error) {
			return s.opt.Proposals.Received(ctx, in.Body)
		})
	plain(s, api,
		operation("POST", at+"/diff", "diffProposal", "What a proposal that was taken in changes", tagGit, auth.Admin),
		func(ctx context.Context, in *struct{ Body wire.TravelledDiff }) (wire.GitDiff, error) {
			return s.opt.Proposals.PulledDiff(ctx, in.Body.Travelled, in.Body.GitDiffRequest)
		})
	op := operation("POST", at+"/patch", "patchProposal", "The same as a patch", tagGit, auth.Admin)
	answers(&op, http.StatusOK, "text/x-diff", "the patch, and an error that comes late in the trailer "+errorTail, text())
	raw(s, api, op, func(in *struct{ Body wire.TravelledDiff }, w http.ResponseWriter, r *http.Request) {
		s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error {
			return s.opt.Proposals.PulledPatch(ctx, in.Body.Travelled, in.Body.GitDiffRequest, pw)
		})
	})
	plain(s, api,
		replayable(operation("POST", at+"/apply", "applyProposal", "Put a proposal that was taken in onto a branch",
			tagGit, auth.Admin)),
		func(ctx context.Context, in *struct{ Body wire.TravelledApply }) (wire.GitApplied, error) {
			return s.opt.Proposals.PulledApply(ctx, in.Body.Travelled, in.Body.GitApplyRequest)
		})
}

// addPacked adds what layers travel by that are no part of a repository.
func (s *Server) addPacked(api huma.API, at string) {
	plain(s, api,
		operation("GET", at+"/layers", "packedLayers", "The layers of a sandbox that travel", tagGit, auth.Admin),
		func(ctx context.Context, in *struct {
			Name string `query:"name" required:"true" doc:"name or id of the sandbox"`
		}) (wire.Packing, error) {
			return s.opt.LayerTravel.Packing(ctx, in.Name)
		})
	op := operation("POST", at+"/layer", "packLayer", "One of them, packed", tagGit, auth.Admin)
	answers(&op, http.StatusOK, asZstd, "a tar archive by zstd, and an error that comes late in the trailer "+errorTail,
		binary())
	raw(s, api, op, func(in *struct{ Body wire.PackRequest }, w http.ResponseWriter, r *http.Request) {
		s.send(w, r, asZstd,
			func(ctx context.Context, pw io.Writer) error { return s.opt.LayerTravel.PackLayer(ctx, in.Body, pw) })
	})
	op = streams(
		operation("PUT", at+"/layers", "unpackLayers", "Make a sandbox of the layers of a proposal that was taken in",
			tagGit, auth.Admin))
	answers(&op, http.StatusOK, asJSON, "the sandbox", schemaOf[wire.Sandbox](api))
	raw(s, api, op, func(in *struct {
		Dir    string `query:"dir" required:"true" doc:"a directory in the work tree that it was pulled into"`
		Remote string `query:"remote" required:"true" doc:"the remote that it was pulled from"`
		Name   string `query:"name" required:"true" doc:"the sandbox that it is of"`
		As     string `query:"as" doc:"what the new one is called; as the proposal else"`
	}, w http.ResponseWriter, r *http.Request) {
		made, err := s.opt.LayerTravel.UnpackLayers(r.Context(),
			wire.Travelled{Dir: in.Dir, Remote: in.Remote, Name: in.Name}, in.As, r.Body)
		s.reply(w, r, made, err)
	})
	takes(api, op, "the packed layers, one behind the other, as receive lists them",
		map[string]*huma.MediaType{asBytes: {Schema: binary()}})
}

// asZstd is a packed layer.
const asZstd = "application/zstd"
