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

// pushResult is the JSON output of push.
type pushResult struct {
	Remote string         `json:"remote"`
	Name   string         `json:"name"`
	Refs   []wire.SendRef `json:"refs"`
	Bytes  int64          `json:"layer_bytes,omitempty"` // of packed layers
	// location of the layers in a registry: REGISTRY/REPOSITORY@DIGEST
	Artifact string `json:"artifact,omitempty"`
}

func (a *app) gitPush() *cobra.Command {
	p := &pushing{app: a}
	cmd := &cobra.Command{
		Use: "push [REMOTE] NAME [flags]", Short: "Push a proposal to a remote",
		Long: `Propose the changes of a sandbox, as "coppice git propose" does, and push them
with your git and credentials: the branch coppice/NAME, and
refs/coppice/proposals/NAME with the report, the patch, the policy, the list of
snapshots, and the records with their proofs. "coppice git pull" fetches the
proposal into another clone.

The default REMOTE is that of git push. A remote proposal is replaced only if it
is the one that you last pushed or pulled; replacing another author's proposal
of the same name requires --replace.

With --with-layers, also push the files of the snapshots, so that a colleague
can recreate, rewind and fork the sandbox. They may include anything that the
sandbox wrote outside the repository: check "coppice diff NAME" first. Large
layers belong in an OCI registry: with --registry they are pushed there, with
the credentials of docker or podman, and the repository holds only their list
and digests. Blobs that the registry already has are not sent again.`,
		Example: `  coppice git push fix-auth
  coppice git push upstream fix-auth -m "auth: check the expiry"
  coppice git push fix-auth --with-layers
  coppice git push fix-auth --with-layers --registry ghcr.io/team/layers`,
		Args: between(1, 2, "the name of a sandbox, optionally after a remote"), ValidArgsFunction: a.names(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return p.do(ctx, args)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&p.prop.Title, "message", "m", "", "one-line `TITLE` of the proposal")
	f.StringArrayVar(&p.prop.Tests, "test", nil, "run `CMD` in a fork and report its exit code; repeatable")
	f.StringArrayVar(&p.prop.Trust, "trust", nil, "confirm that you reviewed the marked `PATH`; repeatable")
	f.BoolVar(&p.prop.TrustAll, "trust-all", false, "confirm that you reviewed all marked paths")
	f.BoolVar(&p.layers, "with-layers", false, "also push the files of its snapshots")
	f.Int64Var(&p.most, "max-layers", 0,
		"limit of packed layers in `BYTES` (default 64 MiB; 4 GiB with --registry)")
	p.reg.add(cmd, "with --with-layers: push them to `REGISTRY/REPOSITORY[:TAG]` instead of git")
	f.BoolVar(&p.replace, "replace", false, "replace another author's proposal of the same name on the remote")
	return cmd
}

// pushing is one run of push. Cobra sets the flags; each step needs the results of the previous one: propose, send
// (with artifact, for a registry) and printPushed.
type pushing struct {
	*app
	prop    wire.ProposeRequest
	layers  bool
	most    int64 // maximum size of packed layers in bytes; 0 selects the default
	replace bool
	reg     registryFlags

	c      *client.Client
	git    *userGit
	remote string
	name   string // name of the sandbox, as given
	to     *named // the registry for the layers; nil is git
	result pushResult
}

// do proposes a sandbox, pushes the proposal, and prints the result. args are the arguments of the command.
func (p *pushing) do(ctx context.Context, args []string) error {
	if err := p.propose(ctx, args); err != nil {
		return err
	}
	if err := p.send(ctx); err != nil {
		return err
	}
	return p.print(p.result, p.printPushed)
}

// propose finds the remote and the registry, and has the daemon propose the changes.
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
	p.prop.Guard = true // a forge, or a user who fetches it, may run or trust the files
	_, err = p.c.Propose(ctx, p.name, p.prop)
	return err
}

// send pushes the references of the proposal, after its layers, and has the daemon record the push.
func (p *pushing) send(ctx context.Context) error {
	req := wire.SendRequest{Name: p.name, Remote: p.remote, Layers: p.layers && p.to == nil, MaxBytes: p.most}
	send, err := p.c.PreparePush(ctx, req)
	if err != nil {
		return err
	}
	if send.Foreign && !p.replace {
		return fault.New(fault.Conflict,
			"%s has a proposal %s by another author", tty.Clean(p.remote), tty.Clean(p.name)).
			WithHint("review it: coppice git pull %s %s; fork the sandbox under another name, or use --replace",
				p.remote, p.name)
	}
	if p.to != nil {
		if send, err = p.artifact(ctx, req); err != nil {
			return err
		}
	}
	if err := p.git.push(ctx, p.remote, p.result.Name, send.Refs); err != nil {
		return err
	}
	at := wire.Travelled{Dir: send.Top, Remote: p.remote, Name: p.result.Name}
	if err := p.c.RecordPush(ctx, wire.SentRequest{Travelled: at, Refs: send.Refs}); err != nil {
		return err
	}
	p.result.Refs, p.result.Bytes = send.Refs, send.Bytes
	return nil
}

// artifact pushes the layers to the registry, and returns the references to push.
func (p *pushing) artifact(ctx context.Context, req wire.SendRequest) (send wire.Sending, err error) {
	layers := &artifactPush{app: p.app, c: p.c, to: p.to, sandbox: p.result.Name, most: p.most}
	if req.Artifact, err = layers.push(ctx); err != nil {
		return send, err
	}
	if send, err = p.c.PreparePush(ctx, req); err != nil {
		return send, err
	}
	send.Bytes = layers.bytes
	p.result.Artifact = req.Artifact.Repository + "@" + req.Artifact.Digest
	return send, nil
}

// printPushed writes the pushed references, and notes how to fetch them.
func (p *pushing) printPushed(w io.Writer) error {
	if p.result.Artifact != "" {
		p.note("its layers are %s", tty.Clean(p.result.Artifact))
	}
	p.note("a colleague fetches it with: coppice git pull %s %s", tty.Clean(p.remote), tty.Clean(p.result.Name))
	for _, r := range p.result.Refs {
		if _, err := fmt.Fprintf(w, "%s %s\n", tty.Clean(r.To), tty.Clean(r.Ref)); err != nil {
			return err
		}
	}
	return nil
}

// localClient returns the client of a local daemon, which uses the same repository as git.
func (a *app) localClient(verb string) (*client.Client, error) {
	if _, remote, err := client.Remote(a.getenv); err != nil || remote {
		if err == nil {
			err = fault.New(fault.Unsupported,
				"%s works on a local repository, and COPPICE_HOST names another machine", verb).
				WithHint("run it there")
		}
		return nil, err
	}
	return a.client()
}

// push pushes the references of a proposal, if the remote still has their last known values. The push is atomic if
// the remote supports that; otherwise the proposal is pushed last.
func (g *userGit) push(ctx context.Context, remote, name string, refs []wire.SendRef) error {
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
			"the proposal on %s has changed since you last pushed or pulled it", tty.Clean(remote)).
			WithHint("review it: coppice git pull %s %s; then push again", remote, name)
	case strings.Contains(out, "[remote rejected]"):
		return fault.New(fault.Denied, "%s rejected the push: %s", tty.Clean(remote), rejection(out)).
			WithHint("the server may accept only branches; allow refs/coppice/* there, or use coppice git pr")
	}
	return fault.New(fault.Unavailable, "git could not push to %s", tty.Clean(remote)).Because(err).
		WithHint("check: git -C %s push %s --dry-run", g.dir, remote)
}

// rejection finds the reason for a rejected reference in git's output.
func rejection(out string) string {
	for l := range strings.Lines(out) {
		if i := strings.Index(l, "[remote rejected]"); i >= 0 {
			return tty.Clean(strings.TrimSpace(l[i+len("[remote rejected]"):]))
		}
	}
	return "no cause reported"
}
