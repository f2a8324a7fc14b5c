package cli

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
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

To compare two sandboxes, name both: NAME is the live state of a sandbox, and
NAME@REF a snapshot of it. What differs in content, mode, owner or attributes is
shown, and times are ignored. Layers that both have in common are not read. If
the second name is also a snapshot of the first sandbox, it is ambiguous and
refused: NAME@ is always a sandbox.

If the sandbox works on a git repository and A is not given, show a patch of all
changes since its initial commit, committed or not, as git diff does. Files that
the host may later run or trust are marked. Configuration, attributes and hooks
of the sandbox are ignored. --files selects the first form. REMOTE/NAME is a
pulled proposal.`,
		Example: `  coppice diff box HEAD~1 HEAD --stat
  coppice diff box HEAD~1 --patch -- etc/passwd
  coppice diff try-1 try-2 --stat
  coppice diff try-1@HEAD try-2@HEAD~1
  coppice diff fix-auth
  coppice diff fix-auth --stat -- src`,
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.nameThenRef(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if patch && (stats || a.json) {
				return usagef("--patch is mutually exclusive with --stat and --json")
			}
			states, paths, err := diffArgs(args, cmd.ArgsLenAtDash())
			if err != nil {
				return err
			}
			form.stat = stats
			if isPulled(args[0]) {
				return a.pulledDiff(cmd.Context(), args[0], append(states[1:], paths...), form)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if name, ref, _ := splitState(states[0]); !files && len(states) == 1 && ref == "" {
				st, err := c.Status(cmd.Context(), name)
				if err != nil {
					return err
				}
				if st.Sandbox.Repo != nil {
					return a.gitDiff(cmd.Context(), ofSandbox{c, name}, st.Sandbox.Repo, paths, form)
				}
			}
			if form.repositoryOnly() {
				return &usageError{
					msg:  "--pending, --color and --no-pager require a sandbox that works on a git repository",
					hint: "drop them"}
			}
			name, req, err := diffRequest(cmd.Context(), c, states)
			if err != nil {
				return err
			}
			req.Paths, req.Stat = paths, stats
			if patch {
				return refHint(a.filePatch(cmd.Context(), c, name, req), args)
			}
			res, err := c.Diff(cmd.Context(), name, req)
			if err != nil {
				return refHint(err, args)
			}
			return a.print(res, func(w io.Writer) error {
				list := changes
				switch {
				case stats:
					list = stat
				case form.names || form.status:
					list = form.list
				}
				if err := list(w, a.palette(), res.Changes); err != nil || !res.Truncated {
					return err
				}
				if req.Other != "" {
					return a.cutOff(w, len(res.Changes), name+"@"+res.A, req.Other+"@"+res.B, "")
				}
				return a.cutOff(w, len(res.Changes), name, res.A, res.B)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&patch, "patch", "p", false, "show unified diffs")
	f.BoolVar(&stats, "stat", false, "show line counts")
	f.BoolVar(&form.names, "name-only", false, "show only paths")
	f.BoolVar(&form.status, "name-status", false, "show paths with A, D, M, R or T")
	f.BoolVar(&form.pending, "pending", false, "in a repository: leave out files that the branch already has")
	f.StringVar(&form.color, "color", "", "in a repository: use colors `WHEN`: always, never or auto")
	f.BoolVar(&form.noPager, "no-pager", false, "in a repository: do not use a pager")
	f.BoolVar(&files, "files", false, "show files changed since HEAD, even if the sandbox works on a repository")
	return cmd
}

// filePatch prints a patch of files: to a pipe its exact bytes, for git apply; to a terminal with control bytes
// escaped.
func (a *app) filePatch(ctx context.Context, c *client.Client, name string, req wire.DiffRequest) error {
	if !tty.IsTerminal(a.stdout) {
		return c.Patch(ctx, name, req, a.out)
	}
	l := &lines{w: a.out, p: a.palette()}
	if err := c.Patch(ctx, name, req, l); err != nil {
		return err
	}
	return l.flush()
}

// lines sanitizes and colours a patch line by line.
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
