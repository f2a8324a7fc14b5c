package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) mark() *cobra.Command {
	return &cobra.Command{
		Use: "mark NAME [begin|end] LABEL", Short: "Label what happens in a sandbox", GroupID: groupHistory,
		Long: `Take a snapshot of the present with a label, and print its id; when nothing was
changed since HEAD, that is what is printed.

Between "begin" and "end", automatic snapshots have the label: so an agent's
harness can make the log read like the agent's own steps. "begin" keeps what was
before under its own label. "end" takes a snapshot with the label of "begin", or
with the one that is given. Snapshots of exec and commit keep their own messages.
"coppice hook" makes the common harnesses do this by themselves.`,
		Example: `  coppice snapshot mark box "tests pass"
  coppice snapshot mark box begin "upgrade the compiler"
  coppice snapshot mark box end`,
		Args:              between(2, 3, "a sandbox, begin or end, and a label"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := wire.MarkRequest{Label: args[len(args)-1]}
			switch {
			case len(args) == 3:
				req.Phase = args[1]
			case args[1] == wire.MarkEnd:
				req = wire.MarkRequest{Phase: wire.MarkEnd}
			case args[1] == wire.MarkBegin:
				return &usageError{msg: "begin needs a label", hint: `as in: coppice snapshot mark ` + args[0] + ` begin "what comes"`}
			}
			if req.Phase != wire.MarkPoint && req.Phase != wire.MarkBegin && req.Phase != wire.MarkEnd {
				return &usageError{msg: fmt.Sprintf("%q is neither begin nor end", req.Phase), hint: "put the label in quotes"}
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
