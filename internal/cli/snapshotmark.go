package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotMark() *cobra.Command {
	return &cobra.Command{
		Use: "mark NAME [begin|end] MESSAGE", Short: "Mark a sandbox's activity with a message",
		Long: `Take a snapshot of the current state with a message, and print its ID. If
nothing changed since HEAD, print the ID of HEAD.

Automatic snapshots between "begin" and "end" have the message, so that an
agent's harness can make the log show the agent's steps. "begin" first captures
earlier changes under the previous message. "end" takes a snapshot with the
message of "begin", or with the given one. Snapshots of exec and snapshot create
keep their own messages. "coppice hook" configures common harnesses to do this.`,
		Example: `  coppice snapshot mark box "tests pass"
  coppice snapshot mark box begin "upgrade the compiler"
  coppice snapshot mark box end`,
		Args:              between(2, 3, "a sandbox, begin or end, and a message"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := wire.MarkRequest{Label: args[len(args)-1]}
			switch {
			case len(args) == 3:
				req.Phase = args[1]
			case args[1] == wire.MarkEnd:
				req = wire.MarkRequest{Phase: wire.MarkEnd}
			case args[1] == wire.MarkBegin:
				return &usageError{msg: "begin requires a message",
					hint: `as in: coppice snapshot mark ` + args[0] + ` begin "what comes"`}
			}
			if req.Phase != wire.MarkPoint && req.Phase != wire.MarkBegin && req.Phase != wire.MarkEnd {
				return &usageError{
					msg:  fmt.Sprintf("unknown phase %q: must be begin or end", req.Phase),
					hint: "put the message in quotes",
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Mark(cmd.Context(), args[0], req)
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
}
