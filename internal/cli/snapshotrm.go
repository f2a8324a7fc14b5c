package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotRm() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME REF", Short: "Drop a snapshot from the history",
		Long: `Drop a snapshot from the history, and print where HEAD is. What descends from it
keeps its content and gets its parent. The head, the only snapshot and what a tag
or a fork refers to are refused.`,
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
