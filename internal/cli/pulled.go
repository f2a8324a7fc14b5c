package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

// reviewed is something to review and apply: the changes of a sandbox, or a pulled proposal.
type reviewed interface {
	diff(ctx context.Context, req wire.GitDiffRequest) (wire.GitDiff, error)
	patch(ctx context.Context, req wire.GitDiffRequest, w io.Writer) error
	apply(ctx context.Context, req wire.GitApplyRequest) (wire.GitApplied, error)
}

// ofSandbox is the changes of a sandbox.
type ofSandbox struct {
	c    *client.Client
	name string
}

func (s ofSandbox) diff(ctx context.Context, req wire.GitDiffRequest) (wire.GitDiff, error) {
	return s.c.GitDiff(ctx, s.name, req)
}

func (s ofSandbox) patch(ctx context.Context, req wire.GitDiffRequest, w io.Writer) error {
	return s.c.GitPatch(ctx, s.name, req, w)
}

func (s ofSandbox) apply(ctx context.Context, req wire.GitApplyRequest) (wire.GitApplied, error) {
	return s.c.GitApply(ctx, s.name, req)
}

// ofProposal is a pulled proposal.
type ofProposal struct {
	c  *client.Client
	at wire.Travelled
}

func (p ofProposal) diff(ctx context.Context, req wire.GitDiffRequest) (wire.GitDiff, error) {
	return p.c.DiffProposal(ctx, p.at, req)
}

func (p ofProposal) patch(ctx context.Context, req wire.GitDiffRequest, w io.Writer) error {
	return p.c.PatchProposal(ctx, p.at, req, w)
}

func (p ofProposal) apply(ctx context.Context, req wire.GitApplyRequest) (wire.GitApplied, error) {
	return p.c.ApplyProposal(ctx, p.at, req)
}

// isPulled reports whether a name is that of a pulled proposal. The name of a sandbox has no slash.
func isPulled(name string) bool { return strings.Contains(name, "/") }

// travelled parses REMOTE/NAME, in the repository of the current directory.
func travelled(name string) (at wire.Travelled, err error) {
	i := strings.LastIndex(name, "/")
	at = wire.Travelled{Remote: name[:i], Name: name[i+1:]}
	at.Dir, err = os.Getwd()
	return at, fault.Wrap(err, "find the repository")
}

// reviewed returns what a name refers to.
func (a *app) reviewed(name string) (reviewed, error) {
	if !isPulled(name) {
		c, err := a.client()
		return ofSandbox{c, name}, err
	}
	c, err := a.localClient("a name with a slash")
	if err != nil {
		return nil, err
	}
	at, err := travelled(name)
	return ofProposal{c, at}, err
}

// pulledDiff shows the differences of a pulled proposal.
func (a *app) pulledDiff(ctx context.Context, name string, paths []string, form gitForm) error {
	of, err := a.reviewed(name)
	if err != nil {
		return err
	}
	g, err := a.userGit(".")
	if err != nil {
		return err
	}
	top, err := g.quiet().run(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return fault.New(fault.NotFound, "not in a git repository").Because(err).
			WithHint("change to the clone into which it was pulled")
	}
	return a.gitDiff(ctx, of, &wire.Repo{Top: strings.TrimSuffix(top, "\n")}, paths, form)
}

// received verifies a pulled proposal again.
func (a *app) received(ctx context.Context, name string) (res wire.Received, err error) {
	at, err := travelled(name)
	if err != nil {
		return res, err
	}
	c, err := a.localClient("a name with a slash")
	if err != nil {
		return res, err
	}
	return c.ReceivedProposal(ctx, at)
}

// showPulled writes the whole report of a pulled proposal.
func (a *app) showPulled(cmd *cobra.Command, name string) error {
	res, err := a.received(cmd.Context(), name)
	if err != nil {
		return err
	}
	return a.print(res, func(w io.Writer) error { return a.receivedText(w, &res, res.Report) })
}

// verifyPulled verifies the records and the objects of a pulled proposal.
func (a *app) verifyPulled(cmd *cobra.Command, name string, ask demands) error {
	if ask.checkpoint != "" || len(ask.witnesses) > 0 {
		return &usageError{msg: "--checkpoint and --witness-key require --bundle",
			hint: "git show refs/coppice/remotes/REMOTE/proposals/NAME:ledger.bundle >FILE; coppice system verify --bundle FILE"}
	}
	res, err := a.received(cmd.Context(), name)
	if err != nil {
		return err
	}
	if len(ask.keys) > 0 && !slices.Contains(ask.keys, res.Signer.Key) {
		return fault.New(fault.Denied, "signed by %s, which is not a given key",
			tty.Clean(res.Signer.Key))
	}
	return a.print(res, func(w io.Writer) error { return a.receivedText(w, &res, "") })
}

// receivedText shows a pulled proposal: its report, and the results of the checks.
func (a *app) receivedText(w io.Writer, r *wire.Received, report string) error {
	for l := range strings.Lines(report) {
		if _, err := fmt.Fprintln(w, tty.Clean(strings.TrimSuffix(l, "\n"))); err != nil {
			return err
		}
	}
	if report != "" {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	p := a.palette()
	var t tty.Table
	t.Row("work", tty.Clean(r.Work)+", "+tty.Count(r.Files, "file")+", each object verified")
	t.Row("records", fmt.Sprintf("%d, complete and unmodified", r.Records))
	t.Row("log", tty.Clean(r.Signer.Origin))
	t.Row("signed by", tty.Clean(r.Signer.Key))
	t.Row("key", known(p, &r.Signer))
	if !r.Bound {
		t.Row("BUT", p.Red("no record of a proposal of this commit"))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, d := range r.Differs {
		a.warn([]string{"the proposal does not match: " + d})
	}
	a.warn(r.Warnings)
	return nil
}

// known describes whether a key was seen before.
func known(p tty.Palette, s *wire.Signer) string {
	switch {
	case s.Changed != "":
		return p.Red("CHANGED, and trusted with --trust-key; it was " + tty.Clean(s.Changed))
	case s.First:
		return p.Yellow(
			"SEEN FOR THE FIRST TIME, and trusted from now on: compare it with the author's (coppice ledger keys), over " +
				"another channel")
	case s.Since.IsZero():
		return "this host's own"
	}
	return "unchanged since " + s.Since.Format(time.DateOnly)
}
