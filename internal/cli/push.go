package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// pushResult is what push writes as JSON.
type pushResult struct {
	Remote string         `json:"remote"`
	Name   string         `json:"name"`
	Refs   []wire.SendRef `json:"refs"`
	Bytes  int64          `json:"layer_bytes,omitempty"` // of packed layers
	// where they are, in a registry: REGISTRY/REPOSITORY@DIGEST
	Artifact string `json:"artifact,omitempty"`
}

func (a *app) push() *cobra.Command {
	var (
		prop    wire.ProposeRequest
		layers  bool
		most    int64
		replace bool
		reg     registryFlags
	)
	cmd := &cobra.Command{
		Use: "push [REMOTE] NAME [flags]", Short: "Push a proposal for a colleague's clone", GroupID: groupHistory,
		Long: `Propose what a sandbox did to its git repository, as coppice propose does, and push it to
a remote, by your own git with your credentials: the branch coppice/NAME, and in
refs/coppice/proposals/NAME the report, the patch, the policy, the snapshots' list, and the
records with what proves them. A colleague has it in another clone with "coppice pull".

Without REMOTE it is the one that git push would take. What the remote has is replaced only
if it is what you pushed or pulled last; a proposal that somebody else made under this name
only with --replace.

With --with-layers the files of the snapshots go along, so that your colleague can have the
sandbox, go back in it and fork it. They may hold anything that the sandbox wrote outside of
the repository: look at "coppice diff NAME" first. Git is not made for large files: with
--registry they go to a registry for OCI artifacts instead, with the credentials that docker or
podman have for it, and the repository has the list of them with their digests. What the
registry has already is not sent again.`,
		Example: `  coppice push fix-auth
  coppice push upstream fix-auth -m "auth: check the expiry"
  coppice push fix-auth --with-layers
  coppice push fix-auth --with-layers --registry ghcr.io/team/layers`,
		Args: between(1, 2, "the name of a sandbox, perhaps after a remote"), ValidArgsFunction: a.names(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			remote, name := "", args[len(args)-1]
			if len(args) == 2 {
				remote = args[0]
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			to, err := reg.repository(a, layers)
			if err != nil {
				return err
			}
			c, err := a.localClient("push")
			if err != nil {
				return err
			}
			g, sb, err := a.gitOf(ctx, c, name)
			if err != nil {
				return err
			}
			if remote, err = g.remote(ctx, remote, true); err != nil {
				return err
			}
			prop.Guard = true // a forge, or who fetches it, would run or trust what is pushed
			if _, err := c.Propose(ctx, name, prop); err != nil {
				return err
			}
			req := wire.SendRequest{Name: name, Remote: remote, Layers: layers && to == nil, MaxBytes: most}
			send, err := c.Sending(ctx, req)
			if err != nil {
				return err
			}
			if send.Foreign && !replace {
				return fault.New(fault.Conflict, "%s has a proposal %s that was not made here", tty.Clean(remote), tty.Clean(name)).
					WithHint("look at it: coppice pull %s %s; fork the sandbox under another name, or replace it: --replace", remote, name)
			}
			artifact := ""
			if to != nil {
				p := &artifactPush{app: a, c: c, to: to, sandbox: sb.Name, most: most}
				if req.Artifact, err = p.push(ctx); err != nil {
					return err
				}
				if send, err = c.Sending(ctx, req); err != nil {
					return err
				}
				send.Bytes, artifact = p.bytes, req.Artifact.Repository+"@"+req.Artifact.Digest
			}
			if err := g.push(ctx, remote, send.Refs); err != nil {
				return err
			}
			if err := c.Sent(ctx, wire.SentRequest{Travelled: wire.Travelled{Dir: send.Top, Remote: remote, Name: sb.Name}, Refs: send.Refs}); err != nil {
				return err
			}
			return a.print(pushResult{remote, sb.Name, send.Refs, send.Bytes, artifact}, func(w io.Writer) error {
				if artifact != "" {
					a.note("its layers are %s", tty.Clean(artifact))
				}
				a.note("a colleague has it with: coppice pull %s %s", tty.Clean(remote), tty.Clean(sb.Name))
				for _, r := range send.Refs {
					if _, err := fmt.Fprintf(w, "%s %s\n", tty.Clean(r.To), tty.Clean(r.Ref)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&prop.Title, "message", "m", "", "what it is for, in a line: `TITLE`")
	f.StringArrayVar(&prop.Tests, "test", nil, "run `CMD` in a fork of it, and tell how it ended; may be given again")
	f.StringArrayVar(&prop.Trust, "trust", nil, "you have looked at `PATH`, which is marked; may be given again")
	f.BoolVar(&prop.TrustAll, "trust-all", false, "you have looked at all that is marked")
	f.BoolVar(&layers, "with-layers", false, "push the files of its snapshots as well")
	f.Int64Var(&most, "max-layers", 0, "at most so many `BYTES` of packed layers (default 64 MiB; 4 GiB with --registry)")
	reg.add(cmd, "with --with-layers: put them into `REGISTRY/REPOSITORY[:TAG]`, and not into git")
	f.BoolVar(&replace, "replace", false, "also where the remote has a proposal of this name that somebody else made")
	return cmd
}

// localClient gives the client of a daemon of this machine: git works here, on the same
// repository as the daemon.
func (a *app) localClient(verb string) (*client.Client, error) {
	if _, remote, err := client.Remote(a.getenv); err != nil || remote {
		if err == nil {
			err = fault.New(fault.Unsupported, "%s works on a repository of this machine, and COPPICE_HOST names a daemon of another one", verb).
				WithHint("run it there")
		}
		return nil, err
	}
	return a.client()
}

// push pushes references to a remote that has what it was last seen to have. All of them or
// none, where the remote can; the proposal comes last else.
func (g *userGit) push(ctx context.Context, remote string, refs []wire.SendRef) error {
	args := []string{"push", "--porcelain", "--no-signed", "--no-follow-tags", "--no-verify", "--recurse-submodules=no"}
	for _, r := range refs {
		args = append(args, "--force-with-lease="+r.Ref+":"+r.Seen)
	}
	args = append(args, remote)
	for _, r := range refs {
		args = append(args, r.To+":"+r.Ref)
	}
	out, err := g.run(ctx, append([]string{"push", "--atomic"}, args[1:]...)...)
	var ge *gitError
	if errors.As(err, &ge) && strings.Contains(ge.said, "does not support --atomic") {
		out, err = g.run(ctx, args...)
	}
	if !errors.As(err, &ge) {
		return err
	}
	switch {
	case strings.Contains(out, "stale info"):
		return fault.New(fault.Conflict, "%s has something else under this name than you pushed or pulled last", tty.Clean(remote)).
			WithHint("look at it: coppice pull %s NAME; then push again", remote)
	case strings.Contains(out, "[remote rejected]"):
		return fault.New(fault.Denied, "%s does not take it: %s", tty.Clean(remote), rejection(out)).
			WithHint("some servers take branches alone; have refs/coppice/* allowed there, or use coppice pr")
	}
	return fault.New(fault.Unavailable, "git does not push to %s", tty.Clean(remote)).Because(err).WithHint("see whether this works: git -C %s push %s --dry-run", g.dir, remote)
}

// rejection finds in what git push prints why a reference was not taken.
func rejection(out string) string {
	for l := range strings.Lines(out) {
		if i := strings.Index(l, "[remote rejected]"); i >= 0 {
			return tty.Clean(strings.TrimSpace(l[i+len("[remote rejected]"):]))
		}
	}
	return "it does not say why"
}
