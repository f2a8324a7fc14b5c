package client

import (
	"context"
	"io"
	"net/url"

	"github.com/coppice-dev/coppice/client/wire"
)

// GitDiff compares the files of a sandbox with the state of its repository that it started from.
func (c *Client) GitDiff(ctx context.Context, name string, req wire.GitDiffRequest) (wire.GitDiff, error) {
	return get[wire.GitDiff](ctx, c, at(name)+"/git/diff?"+gitQuery(req).Encode())
}

// GitPatch writes the result of GitDiff to w, as a patch that git applies.
func (c *Client) GitPatch(ctx context.Context, name string, req wire.GitDiffRequest, w io.Writer) error {
	return c.patch(ctx, at(name)+"/git/patch?"+gitQuery(req).Encode(), w)
}

// GitApply applies the changes of a sandbox to a branch of its repository.
func (c *Client) GitApply(ctx context.Context, name string, req wire.GitApplyRequest) (wire.GitApplied, error) {
	return post[wire.GitApplied](ctx, c, at(name)+"/git/apply", req)
}

func gitQuery(req wire.GitDiffRequest) url.Values {
	q := url.Values{}
	if len(req.Paths) > 0 {
		q["path"] = req.Paths
	}
	if req.Work != "" {
		q.Set("work", req.Work)
	}
	if req.Stat {
		q.Set("stat", "true")
	}
	if req.Pending {
		q.Set("pending", "true")
	}
	if req.Onto != "" {
		q.Set("onto", req.Onto)
	}
	return q
}
