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
		Use: "rewind NAME REF [flags]", Aliases: []string{"checkout"}, Short: "Bring a sandbox to a snapshot",
		GroupID: groupHistory,
		Long: `Bring the whole root file system to the state of a snapshot, and print its id.
The present is captured first, so that nothing is lost by going back. Running
commands are stopped. The one of "coppice run" is asked to end first (SIGTERM),
and after --grace it is made to; it is started again there.

Where the snapshot has what its processes had in memory (snapshot create --memory), they go on
from there, under the ids that their commands had; the processes that are left are kept
with their memory, too. With --files-only they do not.

With --in-place nothing is stopped:

Commands stand still for a moment, and go on over the files of REF. Directories and
files that are on both sides stay the same ones, so working directories,
watches and open descriptors hold: who appends to a log goes on in the one that
is seen. A file that is mapped or executed is replaced by a new one, and a
running program keeps what it runs. A directory that had been deleted comes back
as a new one; whoever still stands in the old one stays there.`,
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
				return usagef("--grace %s: a time is wanted", grace)
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
	cmd.Flags().BoolVar(&req.FilesOnly, "files-only", false, "go to the files alone, though there is memory")
	cmd.Flags().DurationVar(&grace, "grace", 2*time.Second,
		"`TIME` between SIGTERM and SIGKILL for the command of run; 0 is none")
	return cmd
}

// inPlace declares the flag of the commands that move HEAD.
func inPlace(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "in-place", false, "leave commands running, and change the files under them")
}
