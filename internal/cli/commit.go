package cli

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) commit() *cobra.Command {
	var msg string
	cmd := &cobra.Command{
		Use: "commit NAME -m MSG", Short: "Take a snapshot of the present", GroupID: groupHistory,
		Long: `Take a snapshot of the present, with a message, and print its id. When nothing
was changed since HEAD, that is what is printed. Commands may run on meanwhile.`,
		Example:           `  coppice commit box -m "before the upgrade"`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if msg == "" {
				return &usageError{msg: "commit needs a message", hint: `as in: coppice commit ` + args[0] + ` -m "what this is"`}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Commit(cmd.Context(), args[0], msg)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				if res.Changed {
					a.note("%s, %s changed", tty.Count(res.Paths, "path"), tty.Bytes(res.Bytes))
				} else {
					a.note("nothing was changed since %s", tty.Clean(res.Head))
				}
				_, err := fmt.Fprintln(w, tty.Clean(res.Node))
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&msg, "message", "m", "", "`MSG` of the snapshot")
	return cmd
}

func (a *app) checkout() *cobra.Command {
	return &cobra.Command{
		Use: "checkout NAME REF", Aliases: []string{"rewind"}, Short: "Go to a snapshot", GroupID: groupHistory,
		Long: `Bring the whole root file system to the state of a snapshot, and print its id.
The present is captured first, so that nothing is lost by going back. Running
commands are stopped.`,
		Example: `  coppice checkout box HEAD~1
  coppice rewind box @{5m}`,
		Args:              between(2, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Checkout(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
}

func (a *app) undo() *cobra.Command {
	return &cobra.Command{
		Use: "undo NAME [N]", Short: "Go N snapshots back", GroupID: groupHistory,
		Long:              "Go N snapshots back (default: 1), and print where HEAD is then. What you leave is\nkept; redo goes there again.",
		Example:           "  coppice undo box 2",
		Args:              between(1, 2, "a sandbox and a number"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n := 1
			if len(args) == 2 {
				var err error
				if n, err = strconv.Atoi(args[1]); err != nil || n < 1 {
					return usagef("%q: a number of 1 or more is wanted", args[1])
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Undo(cmd.Context(), args[0], n)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
}

func (a *app) redo() *cobra.Command {
	return &cobra.Command{
		Use: "redo NAME", Short: "Take the last undo back", GroupID: groupHistory,
		Example:           "  coppice redo box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Redo(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
}
