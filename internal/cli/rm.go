package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) rm() *cobra.Command {
	var (
		force, ledger bool
		which         every
	)
	cmd := &cobra.Command{
		Use: "rm NAME... [flags]", Aliases: []string{"remove"}, Short: "Remove sandboxes", GroupID: groupBox,
		Long: `Remove sandboxes with their history, and print their names. Layers that forks
share are kept. A sandbox with running commands requires --force. Audit records
are kept under the sandbox's ID, unless --with-ledger is given, which also works
by ID for a sandbox that was removed earlier. The removal itself is recorded.
--filter restricts --all: see "coppice help ls".`,
		Example:           "  coppice rm try1 try2\n  coppice rm --all --force --filter label=ci",
		Args:              which.args,
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			res := wire.RemoveResult{Removed: []string{}}
			names, err := which.names(cmd.Context(), a, args, func(wire.Sandbox) bool { return true })
			if err == nil && which.all && !force && len(names) > 0 {
				err = a.confirmed(names)
			}
			if err != nil {
				return err
			}
			err = a.each(cmd.Context(), names, func(ctx context.Context, c *client.Client, name string) error {
				remove := c.Remove
				if ledger {
					remove = c.RemoveWithLedger
				}
				if err := remove(ctx, which.ref(name), force); err != nil {
					return err
				}
				res.Removed = append(res.Removed, name)
				return nil
			})
			perr := a.print(res, func(w io.Writer) error {
				for _, n := range res.Removed {
					if _, err := fmt.Fprintln(w, tty.Clean(n)); err != nil {
						return err
					}
				}
				return nil
			})
			return errors.Join(err, perr)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop running commands")
	which.flags(a, cmd, "remove all sandboxes")
	cmd.Flags().BoolVar(&ledger, "with-ledger", false, "also remove their audit records")
	return cmd
}
