package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) undo() *cobra.Command {
	var req wire.UndoRequest
	cmd := &cobra.Command{
		Use: "undo NAME [N] [flags]", Short: "Rewind a sandbox by N snapshots", GroupID: groupHistory,
		Long: "Rewind by N snapshots (default: 1), and print HEAD. The current state is saved;\nredo " +
			"returns to it.",
		Example:           "  coppice undo box 2",
		Args:              between(1, 2, "a sandbox and a number"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.N = 1
			if len(args) == 2 {
				var err error
				if req.N, err = strconv.Atoi(args[1]); err != nil || req.N < 1 {
					return usagef("invalid number %q: must be at least 1", args[1])
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Undo(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	return cmd
}
