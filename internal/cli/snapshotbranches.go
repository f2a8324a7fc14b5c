package cli

import (
	"io"

	"github.com/spf13/cobra"
)

func (a *app) snapshotBranches() *cobra.Command {
	return &cobra.Command{
		Use: "branches NAME", Short: "List branches",
		Long:              "List the snapshots without descendants, newest first.",
		Example:           "  coppice snapshot branches box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Branches(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.list(w, res.Nodes) })
		},
	}
}
