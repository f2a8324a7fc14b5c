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
		Long: `Start stopped sandboxes. The command of coppice run starts again where there
is one, whatever its --restart says; attach shows it. A sandbox without one is made
ready for commands, and goes idle again after half a minute without a process. What
runs already is left alone. Commands start a sandbox by themselves.`,
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
	which.flag(cmd, "start all stopped sandboxes")
	return cmd
}
