package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotHead() *cobra.Command {
	return &cobra.Command{
		Use: "head NAME", Short: "Print the current snapshot of a sandbox",
		Example:           "  good=$(coppice snapshot head box)",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Head(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printID(res, res.Head)
		},
	}
}

// printID prints a result whose text is the ID of a snapshot.
func (a *app) printID(res any, id string) error {
	return a.print(res, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, tty.Clean(id))
		return err
	})
}
