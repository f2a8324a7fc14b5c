package client

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
)

// Propose exports the changes of a sandbox in its repository for a reviewer, as the branch coppice/NAME with a
// report. It runs the requested tests and waits for them.
func (c *Client) Propose(ctx context.Context, name string, req wire.ProposeRequest) (wire.Proposed, error) {
	return post[wire.Proposed](ctx, c, at(name)+"/git/propose", req)
}

// ExportProposal writes the files of the newest proposal of a sandbox to w, as a tar archive. If it fails, the
// archive in w is incomplete.
func (c *Client) ExportProposal(ctx context.Context, name string, w io.Writer) error {
	return c.archive(ctx, at(name)+"/git/proposal", w)
}

// Rebase rebases the changes of a sandbox in its repository onto another commit, with the git inside. Conflicts are
// an error of KindConflict and leave the sandbox unchanged, unless req.KeepConflicts is set.
func (c *Client) Rebase(ctx context.Context, name string, req wire.RebaseRequest) (wire.Rebased, error) {
	return post[wire.Rebased](ctx, c, at(name)+"/git/rebase", req)
}

// Trial runs a command in a temporary fork of a sandbox. A command that fails is not an error.
func (c *Client) Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error) {
	return post[wire.Trial](ctx, c, at(name)+"/trial", req)
}
