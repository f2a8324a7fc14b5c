package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
)

func (a *app) processResume() *cobra.Command {
	return &cobra.Command{
		Use: "resume NAME...", Short: "Resume paused processes",
		Long: `Resume the processes of paused sandboxes. In a quarantined fork with memory,
retry the failed step and all steps after it; its gate opens when every step has
succeeded.`,
		Example:           "  coppice process resume box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Resume)
		},
	}
}
