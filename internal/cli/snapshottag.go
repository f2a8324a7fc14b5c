package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) snapshotTag() *cobra.Command {
	var del bool
	cmd := &cobra.Command{
		Use: "tag NAME [TAG [REF]] [flags]", Short: "List, create or delete tags",
		Long: `Without TAG, list tags. With TAG, tag snapshot REF (default: HEAD) and print its
ID; an existing tag is moved. A tagged snapshot is never removed automatically.`,
		Example: `  coppice snapshot tag box good
  coppice snapshot tag box -d good`,
		Args:              between(1, 3, "a sandbox, a tag and a REF"),
		ValidArgsFunction: a.nameThenTag,
		RunE: func(cmd *cobra.Command, args []string) error {
			if del && len(args) != 2 {
				return usagef("tag -d requires a sandbox and one tag")
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
				return a.printTags(wire.TagsResult{Tags: tags})
			}
			ref := ""
			if len(args) == 3 {
				ref = args[2]
			}
			res, err := c.SetTag(cmd.Context(), args[0], args[1], ref)
			if err != nil {
				return err
			}
			return a.printID(res, res.Node)
		},
	}
	cmd.Flags().BoolVarP(&del, "delete", "d", false, "delete the tag")
	return cmd
}

func (a *app) printTags(res wire.TagsResult) error {
	return a.print(res, func(w io.Writer) error {
		var t tty.Table
		for _, name := range sortedKeys(res.Tags) {
			t.Row(tty.Clean(name), tty.Clean(res.Tags[name]))
		}
		return t.Write(w)
	})
}
