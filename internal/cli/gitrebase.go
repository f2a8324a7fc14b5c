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
		Use: "rebase NAME [flags]", Short: "Bring a sandbox to where its repository is now",
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
