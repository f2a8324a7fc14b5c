package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/tty"
)

// requested is a pushed proposal.
type requested struct {
	wire.Proposed
	Remote string `json:"remote"`         // name of the remote
	URL    string `json:"url"`            // of the remote, without name and password
	Page   string `json:"page,omitempty"` // page to open the request on; "" if the forge is unknown
}

func (a *app) gitPR() *cobra.Command {
	var (
		p           proposing
		remote      string
		open, force bool
	)
	cmd := &cobra.Command{
		Use: "pr NAME [flags]", Short: "Push a sandbox's changes and print where to open a pull request",
		Long: `Propose the changes of a sandbox, as "coppice git propose" does, push the branch
coppice/NAME with your git, and print the page on which to open a pull or merge
request. The URL of the remote selects the forge: GitHub, GitLab, Bitbucket,
Gitea, Forgejo, Codeberg, Azure or sourcehut. For another forge the branch is
printed.

Pushed files may run immediately, with the forge's secrets, as a workflow or a
build. Each marked file must therefore be trusted by name, as for "coppice git
apply". The push uses your environment and credentials and runs no hooks. An
existing remote branch is overwritten only with --force, and only if it has not
changed since you last fetched it.`,
		Example: `  coppice git pr fix-auth -m 'Refuse empty tokens'
  coppice git pr fix-auth --remote upstream --trust .github/workflows/test.yml`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := p.said()
			if err != nil {
				return err
			}
			req.Guard = true
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.request(ctx, args[0], req, remote, force, open)
		},
	}
	p.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&p.trust, "trust", nil, "confirm that you reviewed the marked `PATH`; repeatable")
	f.BoolVar(&p.req.TrustAll, "trust-all", false, "confirm that you reviewed all marked paths")
	f.StringVar(&remote, "remote", "", "push to remote `NAME` (default: as git push does)")
	f.BoolVar(&force, "force", false, "overwrite the remote branch if it has not changed since the last fetch")
	f.BoolVar(&open, "open", false, "open the page in a browser")
	return cmd
}

// request proposes the changes, pushes them, and prints where to open the request.
func (a *app) request(
	ctx context.Context, name string, req wire.ProposeRequest, remote string, force, open bool,
) error {
	if _, far, err := client.Remote(a.getenv); err != nil || far {
		if err == nil {
			err = fault.New(fault.Unsupported, "the repository is on the daemon's machine, not on this one").
				WithHint("push it there: git push REMOTE coppice/%s", tty.Clean(name))
		}
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	git, _, err := a.gitOf(ctx, c, name)
	if err != nil {
		return err
	}
	var to requested
	if to.Remote, err = git.remote(ctx, remote, true); err != nil {
		return err
	}
	where, err := git.quiet().run(ctx, "remote", "get-url", "--push", "--", to.Remote)
	if err != nil {
		return fault.Wrap(err, "find the URL of remote %s", tty.Clean(to.Remote))
	}
	where = strings.TrimSuffix(where, "\n")
	to.URL = proposal.PublicRemote(where)
	if to.Proposed, err = a.guarded(ctx, c, name, req); err != nil {
		return err
	}
	if err := push(ctx, git, to, proposal.RemoteSecret(where), force); err != nil {
		return err
	}
	title := to.Title
	to.Page = proposal.MergePage(where, proposal.MergeRequest{Branch: to.Branch, Into: to.Repo.From, Title: title})
	if err := a.print(to, func(w io.Writer) error {
		line := to.Page
		if line == "" {
			line = to.Branch
		}
		_, err := io.WriteString(w, tty.Clean(line)+"\n")
		return err
	}); err != nil {
		return err
	}
	switch {
	case to.Page == "":
		a.note("pushed to %s, an unknown forge: open the pull request there", tty.Clean(to.URL))
	case open:
		return a.browse(ctx, to.Page)
	}
	return nil
}

// guarded proposes, and asks at a terminal about files that are not trusted.
func (a *app) guarded(
	ctx context.Context, c *client.Client, name string, req wire.ProposeRequest,
) (wire.Proposed, error) {
	res, err := c.Propose(ctx, name, req)
	if err == nil || wireError(err).Kind != string(fault.Denied) {
		return res, err
	}
	seen, derr := c.GitDiff(ctx, name, wire.GitDiffRequest{})
	if derr != nil {
		return res, err
	}
	marks := slices.DeleteFunc(seen.Marks, func(m wire.GitMark) bool {
		return slices.ContainsFunc(req.TrustRaw, func(t []byte) bool { return string(t) == m.Name() })
	})
	if len(marks) == 0 {
		return res, err
	}
	trust, err := a.askTrust(name, marks)
	if err != nil {
		return res, err
	}
	for _, t := range trust {
		req.TrustRaw = append(req.TrustRaw, []byte(t))
	}
	req.Work = seen.Work
	return c.Propose(ctx, name, req)
}

// push pushes exactly the proposed commit. It removes a password in the remote's URL from git's messages.
func push(ctx context.Context, git *userGit, to requested, secret string, force bool) error {
	ref := "refs/heads/" + to.Branch
	args := []string{"push"}
	if force {
		args = append(args, "--force-with-lease="+ref)
	}
	g := *git
	g.said = &hider{w: git.said, secret: []byte(secret)}
	_, err := g.run(ctx, append(args, "--", to.Remote, to.Work+":"+ref)...)
	var ge *gitError
	if errors.As(err, &ge) {
		if secret != "" {
			ge.said = strings.ReplaceAll(ge.said, secret, "***")
		}
		return fault.New(fault.Conflict, "git could not push %s to %s", tty.Clean(to.Branch), tty.Clean(to.Remote)).
			Because(ge).
			WithHint("the proposal is stored; fix what git reports, then push it: git push %s %s", tty.Clean(to.Remote),
				tty.Clean(to.Branch))
	}
	return err
}

// hider replaces a secret in the lines that are written to it.
type hider struct {
	w      io.Writer
	secret []byte
	rest   []byte // an incomplete line
}

func (h *hider) Write(p []byte) (int, error) {
	h.rest = append(h.rest, p...)
	i := bytes.LastIndexAny(h.rest, "\n\r")
	if i < 0 {
		return len(p), nil
	}
	line := h.rest[:i+1]
	if len(h.secret) > 0 {
		line = bytes.ReplaceAll(line, h.secret, []byte("***"))
	}
	_, err := h.w.Write(line)
	h.rest = append([]byte(nil), h.rest[i+1:]...)
	return len(p), err
}
