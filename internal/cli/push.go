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
	p := &pushing{app: a}
	cmd := &cobra.Command{
		Use: "push [REMOTE] NAME [flags]", Short: "Push a proposal for a colleague's clone", GroupID: groupHistory,
		Long: `Propose what a sandbox did to its git repository, as coppice git propose does, and push it to
a remote, by your own git with your credentials: the branch coppice/NAME, and in
refs/coppice/proposals/NAME the report, the patch, the policy, the snapshots' list, and the
records with what proves them. A colleague has it in another clone with "coppice git pull".

Without REMOTE it is the one that git push would take. What the remote has is replaced only
if it is what you pushed or pulled last; a proposal that somebody else made under this name
only with --replace.

With --with-layers the files of the snapshots go along, so that your colleague can have the
sandbox, go back in it and fork it. They may hold anything that the sandbox wrote outside of
the repository: look at "coppice diff NAME" first. Git is not made for large files: with
--registry they go to a registry for OCI artifacts instead, with the credentials that docker or
podman have for it, and the repository has the list of them with their digests. What the
registry has already is not sent again.`,
		Example: `  coppice git push fix-auth
  coppice git push upstream fix-auth -m "auth: check the expiry"
  coppice git push fix-auth --with-layers
  coppice git push fix-auth --with-layers --registry ghcr.io/team/layers`,
		Args: between(1, 2, "the name of a sandbox, perhaps after a remote"), ValidArgsFunction: a.names(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return p.do(ctx, args)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&p.prop.Title, "message", "m", "", "what it is for, in a line: `TITLE`")
	f.StringArrayVar(&p.prop.Tests, "test", nil, "run `CMD` in a fork of it, and tell how it ended; may be given again")
	f.StringArrayVar(&p.prop.Trust, "trust", nil, "you have looked at `PATH`, which is marked; may be given again")
	f.BoolVar(&p.prop.TrustAll, "trust-all", false, "you have looked at all that is marked")
	f.BoolVar(&p.layers, "with-layers", false, "push the files of its snapshots as well")
	f.Int64Var(&p.most, "max-layers", 0,
		"at most so many `BYTES` of packed layers (default 64 MiB; 4 GiB with --registry)")
	p.reg.add(cmd, "with --with-layers: put them into `REGISTRY/REPOSITORY[:TAG]`, and not into git")
	f.BoolVar(&p.replace, "replace", false, "also where the remote has a proposal of this name that somebody else made")
	return cmd
}

// pushing is one run of push. Cobra sets the flags; then each step needs what the one before
// it set: propose, send (with artifact, for a registry) and printPushed.
type pushing struct {
	*app
	prop    wire.ProposeRequest
	layers  bool
	most    int64 // bytes of packed layers; 0 is the default
	replace bool
	reg     registryFlags

	c      *client.Client
	git    *userGit
	remote string
	name   string // of the sandbox, as it was given
	to     *named // the registry for the layers; nil is git
	result pushResult
}

// do proposes what a sandbox did, sends it, and prints what was sent. args are the arguments
// of the command.
func (p *pushing) do(ctx context.Context, args []string) error {
	if err := p.propose(ctx, args); err != nil {
		return err
	}
	if err := p.send(ctx); err != nil {
		return err
	}
	return p.print(p.result, p.printPushed)
}

// propose finds the remote and the registry, and has the daemon propose the sandbox.
func (p *pushing) propose(ctx context.Context, args []string) (err error) {
	remote := ""
	p.name = args[len(args)-1]
	if len(args) == 2 {
		remote = args[0]
	}
	if p.to, err = p.reg.repository(p.app, p.layers); err != nil {
		return err
	}
	if p.c, err = p.localClient("push"); err != nil {
		return err
	}
	var sb wire.Sandbox
	if p.git, sb, err = p.gitOf(ctx, p.c, p.name); err != nil {
		return err
	}
	if p.remote, err = p.git.remote(ctx, remote, true); err != nil {
		return err
	}
	p.result = pushResult{Remote: p.remote, Name: sb.Name}
	p.prop.Guard = true // a forge, or who fetches it, would run or trust what is pushed
	_, err = p.c.Propose(ctx, p.name, p.prop)
	return err
}

// send pushes the references of the proposal, after its layers, and tells the daemon.
func (p *pushing) send(ctx context.Context) error {
	req := wire.SendRequest{Name: p.name, Remote: p.remote, Layers: p.layers && p.to == nil, MaxBytes: p.most}
	send, err := p.c.Sending(ctx, req)
	if err != nil {
		return err
	}
	if send.Foreign && !p.replace {
		return fault.New(fault.Conflict,
			"%s has a proposal %s that was not made here", tty.Clean(p.remote), tty.Clean(p.name)).
			WithHint("look at it: coppice git pull %s %s; fork the sandbox under another name, or replace it: --replace",
				p.remote, p.name)
	}
	if p.to != nil {
		if send, err = p.artifact(ctx, req); err != nil {
			return err
		}
	}
	if err := p.git.push(ctx, p.remote, send.Refs); err != nil {
		return err
	}
	at := wire.Travelled{Dir: send.Top, Remote: p.remote, Name: p.result.Name}
	if err := p.c.Sent(ctx, wire.SentRequest{Travelled: at, Refs: send.Refs}); err != nil {
		return err
	}
	p.result.Refs, p.result.Bytes = send.Refs, send.Bytes
	return nil
}

// artifact puts the layers into the registry, and gives what is to be pushed beside them.
func (p *pushing) artifact(ctx context.Context, req wire.SendRequest) (send wire.Sending, err error) {
	layers := &artifactPush{app: p.app, c: p.c, to: p.to, sandbox: p.result.Name, most: p.most}
	if req.Artifact, err = layers.push(ctx); err != nil {
		return send, err
	}
	if send, err = p.c.Sending(ctx, req); err != nil {
		return send, err
	}
	send.Bytes = layers.bytes
	p.result.Artifact = req.Artifact.Repository + "@" + req.Artifact.Digest
	return send, nil
}

// printPushed writes the references that were pushed, and notes how they are fetched.
func (p *pushing) printPushed(w io.Writer) error {
	if p.result.Artifact != "" {
		p.note("its layers are %s", tty.Clean(p.result.Artifact))
	}
	p.note("a colleague has it with: coppice git pull %s %s", tty.Clean(p.remote), tty.Clean(p.result.Name))
	for _, r := range p.result.Refs {
		if _, err := fmt.Fprintf(w, "%s %s\n", tty.Clean(r.To), tty.Clean(r.Ref)); err != nil {
			return err
		}
	}
	return nil
}

// localClient gives the client of a daemon of this machine: git works here, on the same
// repository as the daemon.
func (a *app) localClient(verb string) (*client.Client, error) {
	if _, remote, err := client.Remote(a.getenv); err != nil || remote {
		if err == nil {
			err = fault.New(fault.Unsupported,
				"%s works on a repository of this machine, and COPPICE_HOST names a daemon of another one", verb).
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
		return fault.New(fault.Conflict,
			"%s has something else under this name than you pushed or pulled last", tty.Clean(remote)).
			WithHint("look at it: coppice git pull %s NAME; then push again", remote)
	case strings.Contains(out, "[remote rejected]"):
		return fault.New(fault.Denied, "%s does not take it: %s", tty.Clean(remote), rejection(out)).
			WithHint("some servers take branches alone; have refs/coppice/* allowed there, or use coppice git pr")
	}
	return fault.New(fault.Unavailable, "git does not push to %s", tty.Clean(remote)).Because(err).
		WithHint("see whether this works: git -C %s push %s --dry-run", g.dir, remote)
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
