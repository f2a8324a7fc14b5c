package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME REF", Short: "Remove a snapshot",
		Long: `Remove a snapshot from the history, and print HEAD. Its descendants keep their
content and get its parent. HEAD, the only snapshot, and snapshots that a tag or
a fork refers to cannot be removed.`,
		Example:           "  coppice snapshot rm box HEAD~3",
		Args:              between(2, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Delete(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Head))
				return err
			})
		},
	}
}
