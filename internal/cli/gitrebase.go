package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) gitRebase() *cobra.Command {
	var req wire.RebaseRequest
	cmd := &cobra.Command{
		Use: "rebase NAME [flags]", Short: "Rebase a sandbox onto the current branch of its repository",
		Long: `Rebase the changes of a sandbox onto the current tip of its upstream branch, or
onto another commit, with the git inside the sandbox. Uncommitted changes stay
uncommitted. A snapshot is taken first.

On a conflict, the sandbox is rewound to that snapshot and the files are listed.
With --keep-conflicts the rebase stays in progress, to be resolved in the
sandbox and continued with "git rebase --continue". No command may run in the
sandbox meanwhile. Forks and older snapshots are not rebased: after "coppice
rewind" to one of them, rebase again. A sandbox created with --dirty cannot be
rebased.`,
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
				a.note("resolve them: coppice shell %s; or undo the rebase: coppice rewind %[1]s %s", tty.Clean(args[0]),
					tty.Clean(res.Before))
				return &exitCode{code: exitError}
			case !res.Moved:
				a.note("already based on %s", short(res.Repo.Base))
			default:
				a.note("now based on %s instead of %s", short(res.Repo.Base), short(res.Old))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Onto, "onto", "", "rebase onto `REV` (default: the tip of its upstream branch)")
	cmd.Flags().BoolVar(&req.KeepConflicts, "keep-conflicts", false, "leave conflicts in the sandbox to be resolved there")
	return cmd
}
