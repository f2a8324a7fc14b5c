package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) stop() *cobra.Command {
	return &cobra.Command{
		Use: "stop NAME...", Short: "End all processes of sandboxes", GroupID: groupBox,
		Long: `End all processes of sandboxes: SIGTERM, and after a while SIGKILL. What they
left is captured, and the sandbox costs no memory any more.`,
		Example:           "  coppice stop box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Stop)
		},
	}
}
