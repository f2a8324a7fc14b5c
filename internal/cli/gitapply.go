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

const applyLong = `Apply the changes of a sandbox in its git repository to a branch: the current
one, or the one named by --onto. The changes are those that "coppice diff NAME"
shows, both committed and uncommitted.

  --squash  create one commit with all changes (default)
  --merge   create a merge commit that keeps the sandbox's commits
  --rebase  recreate each of its commits
  --patch   change the work tree and the index without a commit

Either all changes are applied or none. Conflicts, uncommitted changes and files
in the way abort the command before anything changes. No hooks run.

Files that the host may later run or trust (hooks, CI workflows, Makefiles,
settings of agents and editors, links that leave the tree) require a review: on
a terminal you are asked about each one, otherwise name it with --trust.

The default message is that of the sandbox's commit, or a list if there are
several. The default author is you; --author sets another. REMOTE/NAME is a
pulled proposal.`

func (a *app) gitApply() *cobra.Command {
	var req wire.GitApplyRequest
	ways := map[string]*bool{}
	cmd := &cobra.Command{
		Use: "apply NAME [flags]", Short: "Apply a sandbox's changes to your branch",
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
					return usagef("--%s and --%s are mutually exclusive", req.Way, w)
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
		{wire.GitSquash, "create one commit with all changes (default)"}, {wire.GitMerge, "create a merge commit"},
		{wire.GitRebase, "recreate each of the sandbox's commits"},
		{wire.GitPatch, "change the work tree and index without a commit"},
	} {
		ways[w.way] = f.Bool(w.way, false, w.text)
	}
	f.StringArrayVar(&req.Paths, "paths", nil, "apply only `PATH` and what is below it; repeatable")
	f.StringVarP(&req.Message, "message", "m", "", "commit message `TEXT`")
	f.StringVar(&req.Onto, "onto", "", "apply to `BRANCH` instead of the current branch")
	f.StringVar(&req.Author, "author", "", "author of the commit, as `\"NAME <ADDRESS>\"`")
	f.StringArrayVar(&req.CoAuthors, "co-author", nil,
		"append a Co-authored-by line for `\"NAME <ADDRESS>\"`; repeatable")
	f.StringArrayVar(&req.Trailers, "trailer", nil, "append the trailer `\"KEY: VALUE\"`; repeatable")
	f.StringArrayVar(&req.Trust, "trust", nil, "confirm that you reviewed the marked `PATH`; repeatable")
	f.BoolVar(&req.TrustAll, "trust-all", false, "confirm that you reviewed all marked paths")
	f.BoolVar(&req.DryRun, "dry-run", false, "print what would be done without doing it")
	return cmd
}

// applying applies the changes, and asks at a terminal about files that are not trusted.
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
	trust, err := a.askTrust(name, marks)
	if err != nil {
		return res, err
	}
	more, raw := apart(trust)
	req.Trust, req.TrustRaw, req.Work = append(req.Trust, more...), append(req.TrustRaw, raw...), seen.Work
	return of.apply(ctx, req)
}

// apart separates paths that JSON can represent from others.
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

// untrusted returns an error that lists the marks, and how to trust them.
func untrusted(marks []wire.GitMark) error {
	var b, hint strings.Builder
	b.WriteString("files that the host may later run or trust were not reviewed:")
	last := ""
	for _, m := range marks {
		fmt.Fprintf(&b, " %s (%s: %s);", tty.Quote(m.Name()), m.Kind, m.Why)
		if m.Name() != last {
			fmt.Fprintf(&hint, " --trust %s", tty.Word(tty.Quote(m.Name())))
		}
		last = m.Name()
	}
	return fault.New(fault.Denied, "%s", strings.TrimSuffix(b.String(), ";")).
		WithHint("review them with coppice diff, then add:%s", hint.String())
}

// askTrust asks at a terminal about each path with marks, and fails at the first answer other than yes. Without a
// terminal it fails, and names all of them.
func (a *app) askTrust(name string, marks []wire.GitMark) (trust []string, err error) {
	if a.json || !tty.IsTerminal(a.stdin) || !tty.IsTerminal(a.stderr) {
		return nil, untrusted(marks)
	}
	in := bufio.NewReader(a.stdin)
	for i := 0; i < len(marks); {
		path := marks[i].Name()
		for ; i < len(marks) && marks[i].Name() == path; i++ {
			fmt.Fprintf(a.stderr, "%s: %s: %s\n", tty.Quote(path), tty.Clean(marks[i].Kind), tty.Clean(marks[i].Why))
		}
		fmt.Fprintf(a.stderr, "Did you review it, and do you want to apply it? [y/N] ")
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
				WithHint("review it: coppice diff %s -- %s; or exclude it with --paths", name, tty.Word(path))
		}
	}
	return trust, nil
}

// applied reports what was applied.
func (a *app) applied(w io.Writer, name string, res wire.GitApplied) error {
	p := a.palette()
	if res.Saved != "" {
		a.note("an earlier apply was interrupted; its partially written files are in %s", tty.Clean(res.Saved))
	}
	for _, s := range res.Skipped {
		a.note("skipped: %s: %s", tty.Quote(s.Name()), tty.Clean(s.Why))
	}
	what := tty.Count(len(res.Changes), "file")
	switch {
	case res.DryRun:
		if err := gitNames(w, p, res.Changes, res.Marks, true); err != nil {
			return err
		}
		a.note("would apply %s of %s to %s as %s; nothing changed", what, tty.Clean(name), onto(res),
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

// onto describes the target of an apply.
func onto(res wire.GitApplied) string {
	if res.Onto == "" {
		return "the work tree"
	}
	return tty.Clean(res.Onto)
}
