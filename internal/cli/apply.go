package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

const applyLong = `Put what a sandbox changed in the git repository that it was made in onto a branch
there: the one that is checked out, or with --onto another. What is applied is what
"coppice diff NAME" shows: its commits, and what is not committed.

  --squash  one commit with all of it; the default
  --merge   a merge commit, with the sandbox's own commits behind it
  --rebase  each of its commits anew
  --patch   no commit: changes in the work tree and the index

All of it or nothing is done. A conflict, changes of yours that are not committed, and
files of yours in the way end it there, and nothing was touched. No hook runs.

Files that the host would later run or trust (hooks, CI workflows, Makefiles, settings
of agents and editors, links that leave the tree) are not applied before somebody has
looked at them: on a terminal you are asked for each, elsewhere --trust names it.

Without -m the message is that of the sandbox's commit, or a list where there are
several. The author is you, unless --author says somebody else. REMOTE/NAME is a proposal
that was pulled.`

func (a *app) apply() *cobra.Command {
	var req wire.GitApplyRequest
	ways := map[string]*bool{}
	cmd := &cobra.Command{
		Use: "apply NAME [flags]", Short: "Put what a sandbox changed onto your branch", GroupID: groupHistory,
		Long: applyLong,
		Example: `  coppice git apply fix-auth
  coppice git apply fix-auth --dry-run
  coppice git apply fix-auth --merge --onto release -m "Merge the fix"
  coppice git apply fix-auth --patch --paths src --trust Makefile`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, w := range []string{wire.GitSquash, wire.GitMerge, wire.GitRebase, wire.GitPatch} {
				switch {
				case !*ways[w]:
				case req.Way != "":
					return usagef("--%s and --%s: one way is wanted", req.Way, w)
				default:
					req.Way = w
				}
			}
			res, err := a.applying(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.applied(w, args[0], res) })
		},
	}
	f := cmd.Flags()
	for _, w := range []struct{ way, text string }{
		{wire.GitSquash, "make one commit of all that changed (default)"}, {wire.GitMerge, "merge the sandbox's commits"},
		{wire.GitRebase, "make each of the sandbox's commits anew"},
		{wire.GitPatch, "change files and index, and commit nothing"},
	} {
		ways[w.way] = f.Bool(w.way, false, w.text)
	}
	f.StringArrayVar(&req.Paths, "paths", nil, "only `PATH` and what is below it; may be given again")
	f.StringVarP(&req.Message, "message", "m", "", "the `TEXT` of the commit")
	f.StringVar(&req.Onto, "onto", "", "apply to `BRANCH`, and not to the one that is checked out")
	f.StringVar(&req.Author, "author", "", "the author, as `\"NAME <ADDRESS>\"`")
	f.StringArrayVar(&req.CoAuthors, "co-author", nil,
		"add a line Co-authored-by for `\"NAME <ADDRESS>\"`; may be given again")
	f.StringArrayVar(&req.Trailers, "trailer", nil, "add `\"KEY: VALUE\"` at the end of the message; may be given again")
	f.StringArrayVar(&req.Trust, "trust", nil, "you have looked at `PATH`, which is marked; may be given again")
	f.BoolVar(&req.TrustAll, "trust-all", false, "you have looked at all that is marked")
	f.BoolVar(&req.DryRun, "dry-run", false, "say what would be done, and do nothing")
	return cmd
}

// applying applies, and asks for what is not trusted where somebody can be asked.
func (a *app) applying(ctx context.Context, name string, req wire.GitApplyRequest) (wire.GitApplied, error) {
	for _, list := range []*[]string{&req.Paths, &req.Trust} {
		raw := &req.PathsRaw
		if list == &req.Trust {
			raw = &req.TrustRaw
		}
		*list, *raw = apart(*list)
	}
	of, err := a.reviewed(name)
	if err != nil {
		return wire.GitApplied{}, err
	}
	res, err := of.apply(ctx, req)
	if err == nil || req.DryRun || wireError(err).Kind != string(fault.Denied) {
		return res, err
	}
	dry := req
	dry.DryRun = true
	seen, derr := of.apply(ctx, dry)
	if derr != nil {
		return seen, err
	}
	marks := slices.DeleteFunc(seen.Marks, func(m wire.GitMark) bool { return m.Trusted })
	if len(marks) == 0 {
		return res, err
	}
	if a.json || !tty.IsTerminal(a.stdin) || !tty.IsTerminal(a.stderr) {
		return res, untrusted(marks)
	}
	trust, err := a.askTrust(name, marks)
	if err != nil {
		return res, err
	}
	more, raw := apart(trust)
	req.Trust, req.TrustRaw, req.Work = append(req.Trust, more...), append(req.TrustRaw, raw...), seen.Work
	return of.apply(ctx, req)
}

// apart divides paths into those that JSON can hold, and others.
func apart(paths []string) (plain []string, raw [][]byte) {
	for _, p := range paths {
		if strings.ToValidUTF8(p, "") == p {
			plain = append(plain, p)
		} else {
			raw = append(raw, []byte(p))
		}
	}
	return plain, raw
}

// untrusted lists the marks, and what would trust them.
func untrusted(marks []wire.GitMark) error {
	var b, hint strings.Builder
	b.WriteString("the host would later run or trust what is applied, and nobody has looked at it:")
	last := ""
	for _, m := range marks {
		fmt.Fprintf(&b, " %s (%s: %s);", tty.Quote(m.Name()), m.Kind, m.Why)
		if m.Name() != last {
			fmt.Fprintf(&hint, " --trust %s", tty.Word(tty.Quote(m.Name())))
		}
		last = m.Name()
	}
	return fault.New(fault.Denied, "%s", strings.TrimSuffix(b.String(), ";")).
		WithHint("look at them with coppice diff, then add:%s", hint.String())
}

// askTrust asks for each path with marks. What is not answered with yes ends it.
func (a *app) askTrust(name string, marks []wire.GitMark) (trust []string, err error) {
	in := bufio.NewReader(a.stdin)
	for i := 0; i < len(marks); {
		path := marks[i].Name()
		for ; i < len(marks) && marks[i].Name() == path; i++ {
			fmt.Fprintf(a.stderr, "%s: %s: %s\n", tty.Quote(path), tty.Clean(marks[i].Kind), tty.Clean(marks[i].Why))
		}
		fmt.Fprintf(a.stderr, "Have you looked at it, and is it to be applied? [y/N] ")
		answer, err := in.ReadString('\n')
		if err != nil && answer == "" {
			answer = "no"
			fmt.Fprintln(a.stderr)
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			trust = append(trust, path)
		default:
			return nil, fault.New(fault.Denied, "%s is not trusted, and nothing was applied", tty.Quote(path)).
				WithHint("look at it: coppice diff %s -- %s; or leave it out with --paths", name, tty.Word(path))
		}
	}
	return trust, nil
}

// applied tells what was applied.
func (a *app) applied(w io.Writer, name string, res wire.GitApplied) error {
	p := a.palette()
	if res.Saved != "" {
		a.note("an apply before this one was cut off; files that it had half written lie in %s", tty.Clean(res.Saved))
	}
	for _, s := range res.Skipped {
		a.note("left out: %s: %s", tty.Quote(s.Name()), tty.Clean(s.Why))
	}
	what := tty.Count(len(res.Changes), "file")
	switch {
	case res.DryRun:
		if err := gitNames(w, p, res.Changes, res.Marks, true); err != nil {
			return err
		}
		a.note("%s of %s would be applied to %s as %s; nothing was done", what, tty.Clean(name), onto(res),
			tty.Clean(res.Way))
		return nil
	case res.Way == wire.GitPatch:
		a.note("%s of %s changed in the work tree and the index; commit them with: git commit", what, tty.Clean(name))
		return nil
	}
	a.note("%s of %s on %s", what, tty.Clean(name), onto(res))
	_, err := fmt.Fprintln(w, tty.Clean(res.New))
	return err
}

// onto names what was applied to.
func onto(res wire.GitApplied) string {
	if res.Onto == "" {
		return "the work tree"
	}
	return tty.Clean(res.Onto)
}
