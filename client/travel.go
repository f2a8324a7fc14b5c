package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

const proposals = "/v1/proposals"

// PreparePush returns the references to push for a proposed sandbox, each with the last known state of the remote. The
// push should require that state (git push --force-with-lease).
func (c *Client) PreparePush(ctx context.Context, req wire.SendRequest) (wire.Sending, error) {
	return post[wire.Sending](ctx, c, proposals+"/sending", req)
}

// PackInfo lists the layers of a sandbox to transfer.
func (c *Client) PackInfo(ctx context.Context, name string) (wire.Packing, error) {
	return get[wire.Packing](ctx, c, proposals+"/layers?name="+url.QueryEscape(name))
}

// PackLayer writes one layer to w, as a tar archive compressed with zstd. If it fails, the archive in w is
// incomplete.
func (c *Client) PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) error {
	return c.patchOf(ctx, http.MethodPost, proposals+"/layer", req, w)
}

// UnpackLayers creates a sandbox from the layers of a pulled proposal. r holds the layers concatenated, in the order
// of Received.Artifact. as is the name of the sandbox; "" uses that of the proposal.
func (c *Client) UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error) {
	var made wire.Sandbox
	q := url.Values{"dir": {at.Dir}, "remote": {at.Remote}, "name": {at.Name}}
	if as != "" {
		q.Set("as", as)
	}
	err := c.put(ctx, proposals+"/layers?"+q.Encode(), "application/octet-stream", r, http.Header{}, &made)
	return made, err
}

// RecordPush records a push.
func (c *Client) RecordPush(ctx context.Context, req wire.SentRequest) error {
	return c.call(ctx, http.MethodPost, proposals+"/sent", req, nil)
}

// ReceiveProposal checks a proposal that was fetched to the references of wire.StagingRef, and stores it if it is
// valid. The references are deleted in any case.
func (c *Client) ReceiveProposal(ctx context.Context, req wire.ReceiveRequest) (wire.Received, error) {
	return post[wire.Received](ctx, c, proposals+"/receive", req)
}

// ReceivedProposal returns a pulled proposal, and checks it again.
func (c *Client) ReceivedProposal(ctx context.Context, at wire.Travelled) (wire.Received, error) {
	return post[wire.Received](ctx, c, proposals+"/show", at)
}

// Proposals lists the proposals that were pulled into the repository that contains dir.
func (c *Client) Proposals(ctx context.Context, dir string) ([]wire.ReceivedItem, error) {
	res, err := get[wire.ReceivedList](ctx, c, proposals+"?dir="+url.QueryEscape(dir))
	return res.Proposals, err
}

// DiffProposal is GitDiff for a pulled proposal.
func (c *Client) DiffProposal(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest) (wire.GitDiff, error) {
	return post[wire.GitDiff](ctx, c, proposals+"/diff", wire.TravelledDiff{Travelled: at, GitDiffRequest: req})
}

// PatchProposal is GitPatch for a pulled proposal.
func (c *Client) PatchProposal(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error {
	return c.patchOf(ctx, http.MethodPost, proposals+"/patch", wire.TravelledDiff{Travelled: at, GitDiffRequest: req}, w)
}

// ApplyProposal is GitApply for a pulled proposal.
func (c *Client) ApplyProposal(
	ctx context.Context, at wire.Travelled, req wire.GitApplyRequest,
) (wire.GitApplied, error) {
	return post[wire.GitApplied](ctx, c, proposals+"/apply", wire.TravelledApply{Travelled: at, GitApplyRequest: req})
}
