package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) tag() *cobra.Command {
	var del bool
	cmd := &cobra.Command{
		Use: "tag NAME [TAG [REF]] [flags]", Short: "List, set or drop names of snapshots", GroupID: groupHistory,
		Long: `Without TAG, list the tags. With TAG, name the snapshot REF (default: HEAD) so,
and print its id; a tag that exists is moved. A tagged snapshot is never dropped.`,
		Example: `  coppice snapshot tag box good
  coppice snapshot tag box -d good`,
		Args:              between(1, 3, "a sandbox, a tag and a REF"),
		ValidArgsFunction: a.nameThenRef(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if del && len(args) != 2 {
				return usagef("tag -d needs a sandbox and one tag")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			switch {
			case del:
				if err := c.DeleteTag(cmd.Context(), args[0], args[1]); err != nil {
					return err
				}
				return a.print(map[string]string{"deleted": args[1]}, func(w io.Writer) error {
					_, err := fmt.Fprintln(w, tty.Clean(args[1]))
					return err
				})
			case len(args) == 1:
				tags, err := c.Tags(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.print(wire.TagsResult{Tags: tags}, func(w io.Writer) error {
					var t tty.Table
					for _, name := range sortedKeys(tags) {
						t.Row(tty.Clean(name), tty.Clean(tags[name]))
					}
					return t.Write(w)
				})
			}
			ref := ""
			if len(args) == 3 {
				ref = args[2]
			}
			res, err := c.SetTag(cmd.Context(), args[0], args[1], ref)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Node))
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&del, "delete", "d", false, "drop the tag")
	return cmd
}

func (a *app) delete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME REF", Short: "Drop a snapshot from the history", GroupID: groupHistory,
		Long: `Drop a snapshot from the history, and print where HEAD is. What descends from it
keeps its content and gets its parent. The head, the only snapshot and what a tag
or a fork refers to are refused.`,
		Example:           "  coppice snapshot rm box HEAD~3",
		Args:              between(2, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Delete(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, tty.Clean(res.Head))
				return err
			})
		},
	}
}
