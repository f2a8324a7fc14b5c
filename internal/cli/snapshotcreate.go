package cli

import (
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
		Use: "create NAME -m MSG [flags]", Short: "Take a snapshot of the current state",
		Long: `Take a snapshot of the current state with a message, and print its ID. If
nothing changed since HEAD, print the ID of HEAD. Commands can continue to run.

With --memory, the snapshot includes the memory of all processes at the same
instant: "coppice rewind" continues them from there, "coppice fork --memory" in
forks. This requires tier gvisor.`,
		Example: `  coppice snapshot create box -m "before the upgrade"
  coppice snapshot create box --memory -m "the server is warm"`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if msg == "" {
				return &usageError{msg: "snapshot create requires a message",
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
			a.tookSnapshot(res)
			return a.printID(res, res.Node)
		},
	}
	cmd.Flags().StringVarP(&msg, "message", "m", "", "message `MSG` of the snapshot")
	cmd.Flags().BoolVar(&memory, "memory", false, "include the memory of processes")
	return cmd
}

func (a *app) tookSnapshot(res wire.CommitResult) {
	if res.Changed {
		a.note("%s, %s changed", tty.Count(res.Paths, "path"), tty.Bytes(res.Bytes))
	} else {
		a.note("nothing changed since %s", tty.Clean(res.Head))
	}
	if m := res.Memory; m != nil {
		a.note("memory: %s, %s of it new; processes were paused for %s", tty.Bytes(m.Size), tty.Bytes(m.Added),
			(time.Duration(res.StillUS) * time.Microsecond).Round(time.Millisecond))
	}
}
