package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
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
			req, err := markRequest(args[1:], "coppice snapshot mark "+args[0])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Mark(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			a.tookSnapshot(res)
			return a.printID(res, res.Node)
		},
	}
}

// markRequest parses the arguments [begin|end] MESSAGE of a command.
func markRequest(args []string, command string) (wire.MarkRequest, error) {
	req := wire.MarkRequest{Label: args[len(args)-1]}
	switch {
	case len(args) == 2:
		req.Phase = args[0]
	case args[0] == wire.MarkEnd:
		req = wire.MarkRequest{Phase: wire.MarkEnd}
	case args[0] == wire.MarkBegin:
		return req, &usageError{msg: "begin requires a message", hint: "as in: " + command + ` begin "what comes"`}
	}
	if req.Phase != wire.MarkPoint && req.Phase != wire.MarkBegin && req.Phase != wire.MarkEnd {
		return req, &usageError{
			msg:  fmt.Sprintf("unknown phase %q: must be begin or end", req.Phase),
			hint: "put the message in quotes",
		}
	}
	return req, nil
}
