package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) processKill() *cobra.Command {
	var sig wire.ProcessSignal
	cmd := &cobra.Command{
		Use: "kill NAME PID... [flags]", Short: "Send a signal to processes in a sandbox",
		Long: `Send a signal (default: SIGTERM) to processes of a sandbox. "coppice process ls"
lists them; "coppice stop" stops all of them.`,
		Example: "  coppice process kill box 12\n  coppice process kill box 12 13 -s KILL",
		Args:    between(2, -1, "the name of a sandbox and PIDs"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var pids []int
			for _, word := range args[1:] {
				pid, err := strconv.Atoi(word)
				if err != nil || pid < 1 {
					return &usageError{msg: fmt.Sprintf("invalid PID %q", word),
						hint: "list them with: coppice process ls " + args[0]}
				}
				pids = append(pids, pid)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			for _, pid := range pids {
				if err := c.SignalProcess(cmd.Context(), args[0], pid, sig); err != nil {
					return err
				}
			}
			return a.print(map[string]any{"signalled": pids}, func(io.Writer) error { return nil })
		},
	}
	cmd.Flags().StringVarP(&sig.Name, "signal", "s", "TERM", "send signal `SIG`")
	return cmd
}
