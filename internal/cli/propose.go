package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/tty"
)

// proposing is what the flags of propose and pr say.
type proposing struct {
	req     wire.ProposeRequest
	timeout time.Duration
	trust   []string
}

func (p *proposing) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.req.Title, "title", "m", "", "say in a `LINE` what it is for")
	f.StringArrayVar(&p.req.Tests, "test", nil,
		"run `CMD` in a fork, and put into the report how it ended; may be given again")
	f.DurationVar(&p.timeout, "timeout", 0, "`TIME` for each test, as in 90s or 5m")
}

func (p *proposing) said() (wire.ProposeRequest, error) {
	if p.timeout < 0 || p.timeout > 0 && p.timeout < time.Millisecond {
		return p.req, usagef("--timeout %s: a time of a millisecond or more is wanted", p.timeout)
	}
	p.req.TimeoutMS = p.timeout.Milliseconds()
	for _, t := range p.trust {
		p.req.TrustRaw = append(p.req.TrustRaw, []byte(t))
	}
	return p.req, nil
}

func (a *app) propose() *cobra.Command {
	var (
		p   proposing
		out string
	)
	cmd := &cobra.Command{
		Use: "propose NAME [flags]", Short: "Hand what a sandbox did in its repository to a reviewer", GroupID: groupHistory,
		Long: `Take what a sandbox did in its git repository out of it, as the branch coppice/NAME of
your repository, and put a report beside it, in refs/coppice/proposals/NAME: which commands were
run and how they ended, what was refused, the policy and how far it was enforced, the snapshots,
the files that changed, those to look at first, and the ledger, which a stranger verifies. What
is not committed becomes a commit on top. No hook runs, and no file of yours changes.

With --out the report, the patch, the policy and the ledger are written to a directory as well,
for a reviewer without the repository.

The branch is set anew by the next propose. Where somebody has worked on it meanwhile, or has it
checked out, nothing is done. Tests are shell commands, each run in a fork of the sandbox that
is removed then; how they end decides nothing.`,
		Example: `  coppice git propose fix-auth -m 'Refuse empty tokens' --test 'make test'
  coppice git propose fix-auth --out review/`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := p.said()
			if err != nil {
				return err
			}
			if out != "" {
				if err := emptyDir(out); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			res, err := c.Propose(ctx, args[0], req)
			if err != nil {
				return err
			}
			if out != "" {
				if err := saveProposal(ctx, c, args[0], out); err != nil {
					return err
				}
			}
			if err := a.print(res, func(w io.Writer) error {
				_, err := io.WriteString(tty.Cleaner(w), res.Summary)
				return err
			}); err != nil {
				return err
			}
			a.note("look at it: git diff %s %s; the report: git show %s:%s", short(res.Start), tty.Clean(res.Branch),
				tty.Clean(res.Ref), proposal.FileReport)
			if out != "" {
				a.note("written to %s", tty.Quote(out))
			}
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "write the files of the proposal to `DIR`, which is made, or is empty")
	return cmd
}

// short is the beginning of a commit's name.
func short(commit string) string { return tty.Clean(commit[:min(len(commit), 12)]) }

// emptyDir makes a directory, unless there is one that is empty.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		return fault.New(fault.Exists, "%s is not empty", tty.Quote(dir)).WithHint("name a directory that is not there yet")
	}
	return err
}

// saveProposal writes the files of the newest proposal to a directory.
func saveProposal(ctx context.Context, c *client.Client, name, dir string) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	pr, pw := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := c.ExportProposal(ctx, name, pw)
		pw.CloseWithError(err)
		sent <- err
	}()
	err = unpackProposal(pr, root)
	pr.CloseWithError(io.ErrClosedPipe)
	if serr := <-sent; serr != nil && (err == nil || !errors.Is(serr, io.ErrClosedPipe)) {
		err = serr
	}
	return err
}

// unpackProposal writes the files that a proposal has, and no others.
func unpackProposal(r io.Reader, root *os.Root) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fault.Wrap(err, "read the proposal")
		}
		if !slices.Contains(proposal.Names(), h.Name) || h.Size > proposal.Limit(h.Name) {
			return fault.New(fault.Invalid, "a proposal has no file %s of %d bytes", tty.Quote(filepath.Base(h.Name)), h.Size)
		}
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, tr)
		if err = errors.Join(err, f.Close()); err != nil {
			return fault.Wrap(err, "write %s", h.Name)
		}
	}
}

func (a *app) rebase() *cobra.Command {
	var req wire.RebaseRequest
	cmd := &cobra.Command{
		Use: "rebase NAME [flags]", Short: "Bring a sandbox to where its repository is now", GroupID: groupHistory,
		Long: `Put what a sandbox did in its git repository onto the present tip of the branch that it came
from, or onto another commit, by the git that is inside; what is not committed there stays so. A
snapshot is taken before.

Where both sides changed the same, the sandbox goes back to that snapshot, and the files are
named; with --keep-conflicts it is left in the middle of it, for whoever works there to resolve
them and go on with "git rebase --continue". Nothing may run in it meanwhile. Forks of it stay
where they are, and so do its older snapshots: after "coppice rewind" to one of them, rebase
again. One that was made with --dirty cannot be rebased.`,
		Example: `  coppice git rebase fix-auth
  coppice git rebase fix-auth --onto v2 --keep-conflicts`,
		Annotations: map[string]string{exits: `  0  done
  1  it failed, or there are conflicts; the message says which
  2  the command line is wrong`},
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			res, err := c.Rebase(ctx, args[0], req)
			if err != nil {
				return err
			}
			if err := a.print(res, func(w io.Writer) error {
				for _, p := range res.Conflicts {
					if _, err := fmt.Fprintln(w, tty.Clean(p)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
			switch {
			case len(res.Conflicts) > 0:
				a.note("to be resolved there: coppice shell %s; as it was before: coppice rewind %[1]s %s", tty.Clean(args[0]),
					tty.Clean(res.Before))
				return &exitCode{code: exitError}
			case !res.Moved:
				a.note("it stands on %s already", short(res.Repo.Base))
			default:
				a.note("it stands on %s now, and not on %s", short(res.Repo.Base), short(res.Old))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Onto, "onto", "", "onto `REV` (default: the tip of the branch that it came from)")
	cmd.Flags().BoolVar(&req.KeepConflicts, "keep-conflicts", false, "leave conflicts to whoever works in the sandbox")
	return cmd
}
