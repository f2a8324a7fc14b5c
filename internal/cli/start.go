package cli

import (
	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) start() *cobra.Command {
	var which every
	cmd := &cobra.Command{
		Use: "start NAME... [flags]", Short: "Start stopped sandboxes", GroupID: groupBox,
		Long: `Start stopped sandboxes. A supervised command (see "coppice run") starts again,
whatever its --restart; use attach to see it. Without one, the sandbox is made
ready and stops after half a minute without a process. A running sandbox is not
affected. Commands start a sandbox automatically.`,
		Example:           "  coppice start box",
		Args:              which.args,
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := which.names(cmd.Context(), a, args, func(sb wire.Sandbox) bool { return sb.State != wire.StateLive })
			if err != nil {
				return err
			}
			return printEach(cmd.Context(), a, names, (*client.Client).Start)
		},
	}
	which.flags(a, cmd, "start all stopped sandboxes")
	return cmd
}
