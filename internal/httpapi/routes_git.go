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

// GitPaths says what of a repository is compared.
type GitPaths struct {
	Named
	Paths []string `query:"path,explode" doc:"only these, below the top of the work tree, and what is below them"`
	Work  string   `query:"work" doc:"the commit that was looked at, as a GitDiff gave it: that again, and not the present"`
}

// addGit adds what is about the repository of the host that a sandbox works on. To look
// needs more than the scope read: its git is run, and the host's repository gets what it
// writes.
func (s *Server) addGit(api huma.API) {
	const at = box + "/git"
	plain(s, api,
		operation("GET", at+"/diff", "gitDiff", "How a sandbox's files differ from what it began with in its repository",
			tagGit, auth.Operate),
		func(ctx context.Context, in *struct {
			GitPaths
			Stat bool `query:"stat" doc:"count lines"`
		}) (wire.GitDiff, error) {
			return s.opt.Repositories.GitDiff(ctx, in.Name, wire.GitDiffRequest{Paths: in.Paths, Stat: in.Stat, Work: in.Work})
		})
	op := operation("GET", at+"/patch", "gitPatch", "The same as a patch", tagGit, auth.Operate)
	answers(&op, http.StatusOK, "text/x-diff", "the patch, and an error that comes late in the trailer "+errorTail, text())
	raw(s, api, op, func(in *GitPaths, w http.ResponseWriter, r *http.Request) {
		s.sendPatch(w, r, func(ctx context.Context, pw io.Writer) error {
			return s.opt.Repositories.GitPatch(ctx, in.Name, wire.GitDiffRequest{Paths: in.Paths, Work: in.Work}, pw)
		})
	})
	plain(s, api,
		replayable(operation("POST", at+"/apply", "gitApply", "Put what a sandbox changed onto a branch of its repository",
			tagGit, auth.Admin)), s.gitApply)
}

// gitApply changes what lies on the host, outside of sandboxes. Who may use some sandboxes
// alone may not.
func (s *Server) gitApply(ctx context.Context, in *struct {
	Named
	Body wire.GitApplyRequest
}) (wire.GitApplied, error) {
	if limited(auth.From(ctx)) {
		return wire.GitApplied{},
			fault.New(fault.Denied, "a token for some sandboxes does not change the host's repositories").
				WithHint("on the daemon's machine: coppice git apply %s", in.Name)
	}
	return s.opt.Repositories.GitApply(ctx, in.Name, in.Body)
}
