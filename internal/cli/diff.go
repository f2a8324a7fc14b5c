package cli

import (
	"bytes"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) diff() *cobra.Command {
	var patch, stats, files bool
	var form gitForm
	cmd := &cobra.Command{
		Use: "diff NAME [A [B]] [PATH...] [flags]", Short: "Show changes between two states", GroupID: groupHistory,
		Long: `Show the paths that differ between snapshot A (default: HEAD) and snapshot B
(default: the live state): + added, - removed, M modified. An argument that
contains "/" is a path, and so is each argument after "--".

If the sandbox works on a git repository and A is not given, show a patch of all
changes since its initial commit, committed or not, as git diff does. Files that
the host may later run or trust are marked. Configuration, attributes and hooks
of the sandbox are ignored. --files selects the first form. REMOTE/NAME is a
pulled proposal.`,
		Example: `  coppice diff box HEAD~1 HEAD --stat
  coppice diff box HEAD~1 --patch -- etc/passwd
  coppice diff fix-auth
  coppice diff fix-auth --stat -- src`,
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.nameThenRef(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if patch && (stats || a.json) {
				return usagef("--patch is mutually exclusive with --stat and --json")
			}
			req, err := diffRequest(args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			req.Stat = stats
			if isPulled(args[0]) {
				form.stat = stats
				return a.pulledDiff(cmd.Context(), args[0], append(args[1:len(args)-len(req.Paths)], req.Paths...), form)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if form.stat = stats; !files && req.B == "" && !a.refGiven(args, cmd.ArgsLenAtDash()) {
				st, err := c.Status(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				if st.Sandbox.Repo != nil {
					return a.gitDiff(cmd.Context(), ofSandbox{c, args[0]}, st.Sandbox.Repo, req.Paths, form)
				}
			}
			if form != (gitForm{stat: stats}) {
				return &usageError{
					msg:  "--name-only, --name-status, --color and --no-pager require a sandbox that works on a git repository",
					hint: "drop them"}
			}
			if patch {
				// A pipe receives the exact bytes, for git apply; for a terminal, control bytes are escaped.
				var w io.Writer = a.out
				if tty.IsTerminal(a.stdout) {
					w = &lines{w: a.out, p: a.palette()}
				}
				err := c.Patch(cmd.Context(), args[0], req, w)
				if l, ok := w.(*lines); ok && err == nil {
					err = l.flush()
				}
				return a.refHint(err, args)
			}
			res, err := c.Diff(cmd.Context(), args[0], req)
			if err != nil {
				return a.refHint(err, args)
			}
			return a.print(res, func(w io.Writer) error {
				list := changes
				if stats {
					list = stat
				}
				if err := list(w, a.palette(), res.Changes); err != nil || !res.Truncated {
					return err
				}
				return a.cutOff(w, len(res.Changes), args[0], res.A, res.B)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&patch, "patch", "p", false, "show unified diffs")
	f.BoolVar(&stats, "stat", false, "show line counts")
	f.BoolVar(&form.names, "name-only", false, "in a repository: show only paths")
	f.BoolVar(&form.status, "name-status", false, "in a repository: show paths with A, D, M, R or T")
	f.StringVar(&form.color, "color", "", "in a repository: use colors `WHEN`: always, never or auto")
	f.BoolVar(&form.noPager, "no-pager", false, "in a repository: do not use a pager")
	f.BoolVar(&files, "files", false, "show files changed since HEAD, even if the sandbox works on a repository")
	return cmd
}

// refGiven reports whether a reference is among the arguments.
func (a *app) refGiven(args []string, dash int) bool {
	if dash < 0 {
		dash = len(args)
	}
	return dash > 1 && !strings.Contains(args[1], "/")
}

// diffRequest distinguishes references from paths.
func diffRequest(args []string, dash int) (wire.DiffRequest, error) {
	refs := args[1:]
	var paths []string
	if dash >= 0 {
		if dash == 0 {
			return wire.DiffRequest{}, usagef("diff requires the name of a sandbox")
		}
		refs, paths = args[1:dash], args[dash:]
	} else {
		for i, r := range refs {
			if i == 2 || strings.Contains(r, "/") {
				refs, paths = refs[:i], refs[i:]
				break
			}
		}
	}
	if len(refs) > 2 {
		return wire.DiffRequest{}, usagef("diff takes two REFs: %q", refs[2])
	}
	req := wire.DiffRequest{A: "HEAD", Paths: paths}
	if len(refs) > 0 {
		req.A = refs[0]
	}
	if len(refs) > 1 {
		req.B = refs[1]
	}
	return req, nil
}

// refHint adds to an unknown reference that it may have been meant as a path.
func (a *app) refHint(err error, args []string) error {
	if err == nil {
		return nil
	}
	e := wireError(err)
	if e.Kind != string(fault.NotFound) || len(args) < 2 || strings.Contains(e.Hint, "--") {
		return err
	}
	hint := `put "--" before paths`
	if e.Hint != "" {
		hint = e.Hint + "; " + hint
	}
	return &fault.Error{Kind: fault.Kind(e.Kind), Message: e.Message, Hint: hint}
}

// lines cleans and colours a patch line by line.
type lines struct {
	w    io.Writer
	p    tty.Palette
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		if !ok {
			l.rest = append(l.rest, b...)
			return n, nil
		}
		l.rest = append(l.rest, line...)
		if err := l.line("\n"); err != nil {
			return 0, err
		}
		b = rest
	}
}

func (l *lines) line(end string) error {
	s := tty.Clean(strings.ReplaceAll(string(l.rest), "\t", "        "))
	l.rest = l.rest[:0]
	switch {
	case strings.HasPrefix(s, "+++"), strings.HasPrefix(s, "---"), strings.HasPrefix(s, "diff "):
		s = l.p.Bold(s)
	case strings.HasPrefix(s, "@@"):
		s = l.p.Cyan(s)
	case strings.HasPrefix(s, "+"):
		s = l.p.Green(s)
	case strings.HasPrefix(s, "-"):
		s = l.p.Red(s)
	}
	_, err := io.WriteString(l.w, s+end)
	return err
}

func (l *lines) flush() error {
	if len(l.rest) == 0 {
		return nil
	}
	return l.line("\n")
}
