package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) redo() *cobra.Command {
	var req wire.RedoRequest
	cmd := &cobra.Command{
		Use: "redo NAME [flags]", Short: "Reverse the last undo", GroupID: groupHistory,
		Example:           "  coppice redo box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Redo(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	return cmd
}
