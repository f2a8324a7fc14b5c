package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
)

func (a *app) rewind() *cobra.Command {
	var req wire.CheckoutRequest
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "rewind NAME REF [flags]", Aliases: []string{"checkout"}, Short: "Rewind a sandbox to a snapshot",
		GroupID: groupHistory,
		Long: `Rewind the root file system to a snapshot, and print its ID. The current state
is captured first, so nothing is lost. Running commands are stopped. The command
of "coppice run" receives SIGTERM, and SIGKILL after --grace, and is started
again.

If the snapshot includes memory (snapshot create --memory), its processes
continue from there, under the IDs of their commands, and the current processes
are saved with their memory. --files-only restores only files.

With --in-place nothing is stopped:

Commands are paused briefly and continue on the files of REF. Files and
directories that both states have keep their identity, so working directories,
watches and open descriptors stay valid, and appends to a log continue. A mapped
or executed file is replaced, and a running program keeps the old one. A deleted
directory is recreated; processes in the old one stay there.`,
		Example: `  coppice rewind box HEAD~1
  coppice rewind box @{5m}
  coppice rewind --in-place box v1
  coppice rewind box warm --files-only`,
		Args:              between(2, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			req.Node = args[1]
			switch {
			case grace < 0:
				return usagef("invalid --grace %s: must not be negative", grace)
			case cmd.Flags().Changed("grace") && grace < time.Millisecond:
				req.GraceMS = -1
			case cmd.Flags().Changed("grace"):
				req.GraceMS = grace.Milliseconds()
			}
			res, err := c.Checkout(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	cmd.Flags().BoolVar(&req.FilesOnly, "files-only", false, "restore only files, even if the snapshot has memory")
	cmd.Flags().DurationVar(&grace, "grace", 2*time.Second,
		"`TIME` between SIGTERM and SIGKILL for the supervised command; 0 is none")
	return cmd
}

// inPlace adds the flag --in-place of the commands that move HEAD.
func inPlace(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "in-place", false, "keep commands running while their files change")
}
