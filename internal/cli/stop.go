package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) stop() *cobra.Command {
	var which every
	cmd := &cobra.Command{
		Use: "stop NAME... [flags]", Short: "Stop all processes in a sandbox", GroupID: groupBox,
		Long: `Stop all processes in sandboxes: send SIGTERM, and SIGKILL after a grace period.
Changes are captured, and the sandbox no longer uses memory. --filter restricts
--all: see "coppice help ls".`,
		Example:           "  coppice stop box\n  coppice stop --all --filter label=ci",
		Args:              which.args,
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := which.names(cmd.Context(), a, args, func(sb wire.Sandbox) bool { return sb.State == wire.StateLive })
			if err != nil {
				return err
			}
			return printEach(cmd.Context(), a, names, (*client.Client).Stop)
		},
	}
	which.flags(a, cmd, "stop all running sandboxes")
	return cmd
}
