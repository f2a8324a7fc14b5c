package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
)

// GitPaths selects the paths to compare.
type GitPaths struct {
	Named
	Paths []string `query:"path,explode" doc:"only these paths and those below them, relative to the top of the work tree"`
	Work  string   `query:"work" doc:"the commit of an earlier GitDiff, to return it again instead of the current state"`

	Pending bool   `query:"pending" doc:"leave out files that the branch of the repository has as the sandbox has them"`
	Onto    string `query:"onto" doc:"with pending, the onto of an earlier GitDiff; the default is the branch now"`
}

// request returns the request for the difference.
func (p *GitPaths) request(stat bool) wire.GitDiffRequest {
	return wire.GitDiffRequest{Paths: p.Paths, Stat: stat, Work: p.Work, Pending: p.Pending, Onto: p.Onto}
}

// addGit adds the operations on the host's repository of a sandbox. Reading requires more than the scope read: it
// runs the sandbox's git, and writes objects to the host's repository.
func (s *Server) addGit(api huma.API) {
	const at = box + "/git"
	plain(s, api,
		operation("GET", at+"/diff", "gitDiff", "Compare a sandbox with the commit that it started from",
			tagGit, auth.Operate),
		func(ctx context.Context, in *struct {
			GitPaths
			Stat bool `query:"stat" doc:"count lines"`
		}) (wire.GitDiff, error) {
			return s.opt.Repositories.GitDiff(ctx, in.Name, in.request(in.Stat))
		})
	op := operation("GET", at+"/patch", "gitPatch", "The same comparison as a patch", tagGit, auth.Operate)
	answers(&op, http.StatusOK, "text/x-diff", "the patch; a late error is in the trailer "+errorTail, text())
	raw(s, api, op, func(in *GitPaths, w http.ResponseWriter, r *http.Request) {
		s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error {
			return s.opt.Repositories.GitPatch(ctx, in.Name, in.request(false), pw)
		})
	})
	plain(s, api,
		replayable(operation("POST", at+"/apply", "gitApply", "Apply a sandbox's changes to a branch of its repository",
			tagGit, auth.Admin)), s.gitApply)
}

// gitApply applies changes to the host, outside of sandboxes. A limited token may not do that.
func (s *Server) gitApply(ctx context.Context, in *struct {
	Named
	Body wire.GitApplyRequest
}) (wire.GitApplied, error) {
	if limited(auth.From(ctx)) {
		return wire.GitApplied{},
			fault.New(fault.Denied, "a token that is limited to some sandboxes cannot change the host's repositories").
				WithHint("on the daemon's machine: coppice git apply %s", in.Name)
	}
	return s.opt.Repositories.GitApply(ctx, in.Name, in.Body)
}
