package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

const proposals = "/v1/proposals"

// Sending gives what is to be pushed of a sandbox that was proposed, and what the remote had
// of it when it was last seen. Who pushes holds the remote to that.
func (c *Client) Sending(ctx context.Context, req wire.SendRequest) (wire.Sending, error) {
	return post[wire.Sending](ctx, c, proposals+"/sending", req)
}

// Packing lists the layers of a sandbox that travel.
func (c *Client) Packing(ctx context.Context, name string) (wire.Packing, error) {
	return get[wire.Packing](ctx, c, proposals+"/layers?name="+url.QueryEscape(name))
}

// PackLayer writes one of them to w, as a tar archive by zstd. After an error w does not
// hold all of it.
func (c *Client) PackLayer(ctx context.Context, req wire.PackRequest, w io.Writer) error {
	return c.patchOf(ctx, http.MethodPost, proposals+"/layer", req, w)
}

// UnpackLayers makes a sandbox of the layers of a proposal that was taken in: r gives each as
// Received.Artifact lists them, one behind the other. as is what it is called; "" is as the
// proposal.
func (c *Client) UnpackLayers(ctx context.Context, at wire.Travelled, as string, r io.Reader) (wire.Sandbox, error) {
	var made wire.Sandbox
	q := url.Values{"dir": {at.Dir}, "remote": {at.Remote}, "name": {at.Name}}
	if as != "" {
		q.Set("as", as)
	}
	err := c.put(ctx, proposals+"/layers?"+q.Encode(), "application/octet-stream", r, http.Header{}, &made)
	return made, err
}

// Sent notes that it was pushed.
func (c *Client) Sent(ctx context.Context, req wire.SentRequest) error {
	return c.call(ctx, http.MethodPost, proposals+"/sent", req, nil)
}

// Receive has a proposal checked that was fetched to the references of wire.StagingRef, and
// taken in when nothing is wrong with it. The references are gone afterwards in any case.
func (c *Client) Receive(ctx context.Context, req wire.ReceiveRequest) (wire.Received, error) {
	return post[wire.Received](ctx, c, proposals+"/receive", req)
}

// Received gives a proposal that was taken in, checked anew.
func (c *Client) Received(ctx context.Context, at wire.Travelled) (wire.Received, error) {
	return post[wire.Received](ctx, c, proposals+"/show", at)
}

// Proposals lists those that were taken into the repository that a directory lies in.
func (c *Client) Proposals(ctx context.Context, dir string) ([]wire.ReceivedItem, error) {
	res, err := get[wire.ReceivedList](ctx, c, proposals+"?dir="+url.QueryEscape(dir))
	return res.Proposals, err
}

// PulledDiff is GitDiff of a proposal that was taken in.
func (c *Client) PulledDiff(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest) (wire.GitDiff, error) {
	return post[wire.GitDiff](ctx, c, proposals+"/diff", wire.TravelledDiff{Travelled: at, GitDiffRequest: req})
}

// PulledPatch is GitPatch of a proposal that was taken in.
func (c *Client) PulledPatch(ctx context.Context, at wire.Travelled, req wire.GitDiffRequest, w io.Writer) error {
	return c.patchOf(ctx, http.MethodPost, proposals+"/patch", wire.TravelledDiff{Travelled: at, GitDiffRequest: req}, w)
}

// PulledApply is GitApply of a proposal that was taken in.
func (c *Client) PulledApply(
	ctx context.Context, at wire.Travelled, req wire.GitApplyRequest,
) (wire.GitApplied, error) {
	return post[wire.GitApplied](ctx, c, proposals+"/apply", wire.TravelledApply{Travelled: at, GitApplyRequest: req})
}
