package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) processPause() *cobra.Command {
	return &cobra.Command{
		Use: "pause NAME...", Short: "Pause all processes in a sandbox",
		Long: `Pause all processes in a sandbox until "coppice process resume", even if the
daemon exits. Snapshots can be taken of a paused sandbox; commands cannot start.`,
		Example:           "  coppice process pause box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Pause)
		},
	}
}
