package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) start() *cobra.Command {
	return &cobra.Command{
		Use: "start NAME...", Short: "Start stopped sandboxes", GroupID: groupBox,
		Long: `Start stopped sandboxes. The command of coppice run starts again where there
is one, whatever its --restart says; attach shows it. A sandbox without one is made
ready for commands, and goes idle again after half a minute without a process. What
runs already is left alone. Commands start a sandbox by themselves.`,
		Example:           "  coppice start box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Start)
		},
	}
}
