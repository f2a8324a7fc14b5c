package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotCreate() *cobra.Command {
	var (
		msg    string
		memory bool
	)
	cmd := &cobra.Command{
		Use: "create NAME -m MSG [flags]", Short: "Take a snapshot of the present",
		Long: `Take a snapshot of the present, with a message, and print its id. When nothing
was changed since HEAD, that is what is printed. Commands may run on meanwhile.

With --memory it has what processes have in memory as well, at the same moment: rewind
lets them go on from there, and fork --memory in copies. That takes tier gvisor.`,
		Example: `  coppice snapshot create box -m "before the upgrade"
  coppice snapshot create box --memory -m "the server is warm"`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if msg == "" {
				return &usageError{msg: "snapshot create needs a message",
					hint: `as in: coppice snapshot create ` + args[0] + ` -m "what this is"`}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			take := c.Commit
			if memory {
				take = c.CommitMemory
			}
			res, err := take(cmd.Context(), args[0], msg)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				a.tookSnapshot(res)
				_, err := fmt.Fprintln(w, tty.Clean(res.Node))
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&msg, "message", "m", "", "`MSG` of the snapshot")
	cmd.Flags().BoolVar(&memory, "memory", false, "with what processes have in memory")
	return cmd
}

func (a *app) tookSnapshot(res wire.CommitResult) {
	if res.Changed {
		a.note("%s, %s changed", tty.Count(res.Paths, "path"), tty.Bytes(res.Bytes))
	} else {
		a.note("nothing was changed since %s", tty.Clean(res.Head))
	}
	if m := res.Memory; m != nil {
		a.note("memory: %s, of which %s were new; processes stood still for %s", tty.Bytes(m.Size), tty.Bytes(m.Added),
			(time.Duration(res.StillUS) * time.Microsecond).Round(time.Millisecond))
	}
}
