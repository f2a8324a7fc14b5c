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
	var force, ledger bool
	cmd := &cobra.Command{
		Use: "rm NAME... [flags]", Aliases: []string{"remove"}, Short: "Remove sandboxes", GroupID: groupBox,
		Long: `Remove sandboxes with their history, and print their names. What forks share
with them stays. A sandbox in which commands run is refused without --force. What is
recorded of them stays as well, under their ids, unless --with-ledger is given: that it
was removed is recorded, and it can be given for a sandbox that was removed before, by its id.`,
		Example:           "  coppice rm try1 try2",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			res := wire.RemoveResult{Removed: []string{}}
			err := a.each(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) error {
				remove := c.Remove
				if ledger {
					remove = c.RemoveWithLedger
				}
				if err := remove(ctx, name, force); err != nil {
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
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop the commands that run in them")
	cmd.Flags().BoolVar(&ledger, "with-ledger", false, "remove what is recorded of them, too")
	return cmd
}

func (a *app) start() *cobra.Command {
	return &cobra.Command{
		Use: "start NAME...", Short: "Start stopped sandboxes", GroupID: groupBox,
		Long: `Start stopped sandboxes. The command of coppice run starts again where there
is one, whatever its --restart says; attach shows it. A sandbox without one is made
ready for commands, and goes idle again after half a minute without a process. What
runs already is left alone. Commands start a sandbox by themselves.`,
		Example:           "  coppice start box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Start)
		},
	}
}

func (a *app) stop() *cobra.Command {
	return &cobra.Command{
		Use: "stop NAME...", Short: "End all processes of sandboxes", GroupID: groupBox,
		Long: `End all processes of sandboxes: SIGTERM, and after a while SIGKILL. What they
left is captured, and the sandbox costs no memory any more.`,
		Example:           "  coppice stop box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Stop)
		},
	}
}

func (a *app) pause() *cobra.Command {
	return &cobra.Command{
		Use: "pause NAME...", Short: "Have all processes of sandboxes stand still", GroupID: groupBox,
		Long: `Have all processes of sandboxes stand still until coppice process resume, also when the daemon
ends. Snapshots can be taken meanwhile, and no command begins.`,
		Example:           "  coppice process pause box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Pause)
		},
	}
}

func (a *app) resume() *cobra.Command {
	return &cobra.Command{
		Use: "resume NAME...", Short: "Have paused processes go on", GroupID: groupBox,
		Long: `Have the processes of paused sandboxes go on. In a fork with memory that is quarantined,
what failed is done again, with all that comes after it, and its gate opens when
everything is done.`,
		Example:           "  coppice process resume box",
		Args:              between(1, -1, "the name of a sandbox"),
		ValidArgsFunction: a.names(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return printEach(cmd.Context(), a, args, (*client.Client).Resume)
		},
	}
}

// printEach calls fn for every name, and prints those for which it went well: their
// results, as JSON.
func printEach[T any](
	ctx context.Context, a *app, names []string, fn func(*client.Client, context.Context, string) (T, error),
) error {
	res := map[string]T{}
	err := a.each(ctx, names, func(ctx context.Context, c *client.Client, name string) error {
		r, err := fn(c, ctx, name)
		if err == nil {
			res[name] = r
		}
		return err
	})
	perr := a.print(res, func(w io.Writer) error {
		for _, n := range names {
			if _, ok := res[n]; ok {
				if _, err := fmt.Fprintln(w, tty.Clean(n)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(err, perr)
}

// each calls fn for every name, shows all errors but the last, and gives that
// back: one bad name does not keep the others from being done.
func (a *app) each(ctx context.Context, names []string, fn func(context.Context, *client.Client, string) error) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	var last error
	for _, n := range names {
		if err := fn(ctx, c, n); err != nil {
			if last != nil {
				a.finish(nil, last)
			}
			last = err
		}
	}
	return last
}
