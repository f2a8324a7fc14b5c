package cli

import (
	"archive/tar"
	"context"
	"errors"
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

// proposing has the flags of propose and pr.
type proposing struct {
	req     wire.ProposeRequest
	timeout time.Duration
	trust   []string
}

func (p *proposing) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&p.req.Title, "title", "m", "", "title `LINE`")
	f.StringArrayVar(&p.req.Tests, "test", nil,
		"run `CMD` in a fork and report its exit code; repeatable")
	f.DurationVar(&p.timeout, "timeout", 0, "timeout of each test, `TIME` as in 90s or 5m")
}

func (p *proposing) said() (wire.ProposeRequest, error) {
	if p.timeout < 0 || p.timeout > 0 && p.timeout < time.Millisecond {
		return p.req, usagef("invalid --timeout %s: must be at least 1ms", p.timeout)
	}
	p.req.TimeoutMS = p.timeout.Milliseconds()
	for _, t := range p.trust {
		p.req.TrustRaw = append(p.req.TrustRaw, []byte(t))
	}
	return p.req, nil
}

func (a *app) gitPropose() *cobra.Command {
	var (
		p   proposing
		out string
	)
	cmd := &cobra.Command{
		Use: "propose NAME [flags]", Short: "Propose a sandbox's changes to a reviewer",
		Long: `Store the changes of a sandbox as branch coppice/NAME of your repository, with a
report in refs/coppice/proposals/NAME: commands and their exit codes, denials,
the policy and its enforcement, snapshots, changed files, files to review first,
and the audit log, which anyone can verify. Uncommitted changes become a final
commit. No hooks run, and your files do not change.

With --out, also write the report, the patch, the policy and the audit log to a
directory, for reviewers without the repository.

The next propose replaces the branch. If the branch has other commits or is
checked out, the command fails and changes nothing. Tests are shell commands;
each runs in a temporary fork. Their results are reported and decide nothing.`,
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
			a.note("review it: git diff %s %s; the report: git show %s:%s", short(res.Start), tty.Clean(res.Branch),
				tty.Clean(res.Ref), proposal.FileReport)
			if out != "" {
				a.note("written to %s", tty.Quote(out))
			}
			return nil
		},
	}
	p.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "write the files of the proposal to `DIR`, which must be empty or new")
	return cmd
}

// short abbreviates the ID of a commit.
func short(commit string) string { return tty.Clean(commit[:min(len(commit), 12)]) }

// emptyDir creates a directory, and fails if it exists with content.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		return fault.New(fault.Exists, "%s is not empty", tty.Quote(dir)).WithHint("name a new directory")
	}
	return err
}

// saveProposal writes the files of the latest proposal to a directory.
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

// unpackProposal writes the files of a proposal, and fails on any other file.
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
			return fault.New(fault.Invalid,
				"file %s is not part of a proposal or too large: %d bytes", tty.Quote(filepath.Base(h.Name)), h.Size)
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
