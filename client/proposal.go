package client

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
)

// Propose takes what a sandbox did in its repository out of it, and hands it to a reviewer: as
// the branch coppice/NAME, with a report. With tests it takes as long as they do.
func (c *Client) Propose(ctx context.Context, name string, req wire.ProposeRequest) (wire.Proposed, error) {
	return post[wire.Proposed](ctx, c, at(name)+"/git/propose", req)
}

// ExportProposal writes the files of the newest proposal of a sandbox to w, as a tar archive.
// After an error w holds no whole one.
func (c *Client) ExportProposal(ctx context.Context, name string, w io.Writer) error {
	return c.archive(ctx, at(name)+"/git/proposal", w)
}

// Rebase puts what a sandbox did in its repository onto another commit of it, by the git that
// is inside. Conflicts are an error of KindConflict, and the sandbox is as it was, unless they
// are to be kept.
func (c *Client) Rebase(ctx context.Context, name string, req wire.RebaseRequest) (wire.Rebased, error) {
	return post[wire.Rebased](ctx, c, at(name)+"/git/rebase", req)
}

// Trial runs a command in a fork of a sandbox, which is removed then. How the command ends is
// no error.
func (c *Client) Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error) {
	return post[wire.Trial](ctx, c, at(name)+"/trial", req)
}
