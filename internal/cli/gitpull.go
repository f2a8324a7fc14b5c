package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// offered is a proposal on a remote.
type offered struct {
	Name     string `json:"name"`
	Proposal string `json:"proposal"` // commit of the proposal
	Work     string `json:"work"`     // commit of its branch
	Layers   bool   `json:"layers"`
}

func (a *app) gitPull() *cobra.Command {
	var (
		req wire.ReceiveRequest
		reg registryFlags
	)
	cmd := &cobra.Command{
		Use: "pull [REMOTE] [NAME] [flags]", Short: "Fetch and verify a proposal",
		Long: `Fetch a proposal into the current repository, with your git and credentials.
Without NAME, list the proposals of the remote. The default REMOTE is that of
git fetch. A single argument is a remote if one of that name exists.

Your branches, index and files do not change. Everything is verified before it
is stored, and nothing is stored if verification fails: each object, the branch,
which must match the proposal and be based on a commit that you have, and the
records, by the signatures and the tree of their log. Changes, marks and the
summary of the records are computed locally; the rest is the author's claim. The
key of a log is trusted on first use; a changed key is rejected unless
--trust-key names it.

The proposal is then called REMOTE/NAME and takes the place of a sandbox's name:

  coppice snapshot show REMOTE/NAME       coppice diff REMOTE/NAME
  coppice system verify REMOTE/NAME     coppice git apply REMOTE/NAME

With --with-layers, create a sandbox on this host from the snapshots and history
that were pushed with --with-layers; you can inspect, rewind and fork it. Layers
in a registry are fetched with the credentials of docker or podman, and verified
against the digests in the proposal.`,
		Example: `  coppice git pull origin
  coppice git pull origin fix-auth
  coppice diff origin/fix-auth
  coppice git apply origin/fix-auth --squash`,
		Args: between(0, 2, "a remote and the name of a proposal"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return a.pullInto(ctx, &req, &reg, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Key, "trust-key", "",
		"trust verifier `KEY`, although the log was signed by another key before")
	f.BoolVar(&req.Layers, "with-layers", false, "create a sandbox from the pushed layers")
	reg.add(cmd, "with --with-layers: fetch them from `REGISTRY/REPOSITORY` instead")
	f.StringVar(&req.As, "as", "", "with --with-layers: `NAME` of the new sandbox")
	return cmd
}

// pullInto pulls a proposal into the repository of the current directory, or lists those of the remote. req has the
// values of the flags; args are the arguments of the command.
func (a *app) pullInto(ctx context.Context, req *wire.ReceiveRequest, reg *registryFlags, args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	g, err := a.userGit(dir)
	if err != nil {
		return err
	}
	remote, name, err := g.pullArgs(ctx, args)
	if err != nil {
		return err
	}
	if name == "" {
		return a.offers(ctx, g, remote)
	}
	from, err := reg.repository(a, req.Layers)
	if err != nil {
		return err
	}
	req.Travelled = wire.Travelled{Dir: dir, Remote: remote, Name: name}
	c, err := a.localClient("pull")
	if err != nil {
		return err
	}
	if err := g.fetch(ctx, req.Travelled, req.Layers); err != nil {
		return err
	}
	res, err := c.ReceiveProposal(ctx, *req)
	if err != nil {
		return err
	}
	if res.Artifact != nil {
		p := &artifactPull{app: a, c: c, from: from, artifact: res.Artifact}
		if res.Made, err = p.pull(ctx, *req); err != nil {
			return fault.Wrap(err, "%s was verified and stored without its layers", tty.Clean(name))
		}
	}
	if err := a.print(res, func(w io.Writer) error { return a.receivedText(w, &res, res.Summary) }); err != nil {
		return err
	}
	at := tty.Clean(remote + "/" + name)
	a.note("next: coppice snapshot show %s; coppice diff %[1]s; coppice git apply %[1]s", at)
	if res.Made != nil {
		a.note("created sandbox %s from its layers: coppice log %[1]s", tty.Clean(res.Made.Name))
	}
	return nil
}

// pullArgs distinguishes a remote from the name of a proposal.
func (g *userGit) pullArgs(ctx context.Context, args []string) (remote, name string, err error) {
	switch len(args) {
	case 2:
		remote, name = args[0], args[1]
	case 1:
		all, err := g.remotes(ctx)
		if err != nil {
			return "", "", err
		}
		if slices.Contains(all, args[0]) {
			remote = args[0]
		} else {
			name = args[0]
		}
	}
	remote, err = g.remote(ctx, remote, false)
	return remote, name, err
}

// list returns the proposals on a remote.
func (g *userGit) list(ctx context.Context, remote string) ([]offered, error) {
	out, err := g.run(ctx, "ls-remote", "--refs", "--quiet", remote,
		wire.TravelRef("heads", "*"), wire.TravelRef("proposals", "*"), wire.TravelRef("layers", "*"))
	var ge *gitError
	if errors.As(err, &ge) {
		return nil, fault.New(fault.Unavailable, "git cannot reach %s", tty.Clean(remote)).Because(err).
			WithHint("check: git -C %s ls-remote %s", g.dir, remote)
	}
	if err != nil {
		return nil, err
	}
	refs := map[string]string{}
	var names []string
	for l := range strings.Lines(out) {
		id, ref, ok := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		if !ok {
			return nil, fault.New(fault.Invalid, "git lists %q of %s", tty.Cut(tty.Clean(l), 80), tty.Clean(remote))
		}
		refs[ref] = id
		if name, is := strings.CutPrefix(ref, wire.TravelRef("proposals", "")); is {
			names = append(names, name)
		}
	}
	found := []offered{}
	for _, name := range names {
		work, ok := refs[wire.TravelRef("heads", name)]
		_, layers := refs[wire.TravelRef("layers", name)]
		if ok {
			found = append(found, offered{name, refs[wire.TravelRef("proposals", name)], work, layers})
		}
	}
	return found, nil
}

// offers prints the proposals on a remote.
func (a *app) offers(ctx context.Context, g *userGit, remote string) error {
	all, err := g.list(ctx, remote)
	if err != nil {
		return err
	}
	return a.print(all, func(w io.Writer) error {
		if len(all) == 0 {
			a.note("%s has no proposals", tty.Clean(remote))
			return nil
		}
		var t tty.Table
		t.Row("NAME", "WORK", "LAYERS")
		for _, o := range all {
			layers := ""
			if o.Layers {
				layers = "yes"
			}
			t.Row(tty.Clean(o.Name), tty.Clean(o.Work[:min(len(o.Work), 12)]), layers)
		}
		return t.Write(w)
	})
}

// fetch fetches a proposal to the staging references: all of it or nothing.
func (g *userGit) fetch(ctx context.Context, at wire.Travelled, layers bool) error {
	if strings.ContainsAny(at.Name, "*?[:^~\\ ") || strings.HasPrefix(at.Name, "-") {
		return fault.New(fault.Invalid, "invalid proposal name %q", tty.Clean(at.Name))
	}
	all, err := g.list(ctx, at.Remote)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(o offered) bool { return o.Name == at.Name })
	if i < 0 {
		return fault.New(fault.NotFound, "%s has no proposal %s", tty.Clean(at.Remote), tty.Clean(at.Name)).
			WithHint("list its proposals: coppice git pull %s", at.Remote)
	}
	kinds := []string{"heads", "proposals"}
	switch {
	case layers && !all[i].Layers:
		return fault.New(fault.NotFound, "%s was pushed without layers", tty.Clean(at.Name)).
			WithHint("ask the author to run: coppice git push --with-layers; or drop --with-layers")
	case layers:
		kinds = append(kinds, "layers")
	}
	args := []string{
		"fetch", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance",
		"--no-prune", "--quiet", "--refmap=", "--atomic", at.Remote,
	}
	for _, kind := range kinds {
		args = append(args, "+"+wire.TravelRef(kind, at.Name)+":"+wire.StagingRef(at.Remote, at.Name, kind))
	}
	_, err = g.run(ctx, args...)
	var ge *gitError
	if errors.As(err, &ge) {
		return fault.New(fault.Unavailable, "git could not fetch %s from %s", tty.Clean(at.Name), tty.Clean(at.Remote)).
			Because(err).
			WithHint("nothing was stored; try again, or ask the author to push again")
	}
	return err
}
