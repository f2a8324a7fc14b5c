package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) commit() *cobra.Command {
	var (
		msg    string
		memory bool
	)
	cmd := &cobra.Command{
		Use: "commit NAME -m MSG [flags]", Short: "Take a snapshot of the present", GroupID: groupHistory,
		Long: `Take a snapshot of the present, with a message, and print its id. When nothing
was changed since HEAD, that is what is printed. Commands may run on meanwhile.

With --memory it has what processes have in memory as well, at the same moment: checkout
lets them go on from there, and fork --memory in copies. That takes tier gvisor.`,
		Example: `  coppice snapshot create box -m "before the upgrade"
  coppice snapshot create box --memory -m "the server is warm"`,
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if msg == "" {
				return &usageError{msg: "commit needs a message", hint: `as in: coppice snapshot create ` + args[0] + ` -m "what this is"`}
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

func (a *app) checkout() *cobra.Command {
	var req wire.CheckoutRequest
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "checkout NAME REF [flags]", Aliases: []string{"rewind"}, Short: "Go to a snapshot", GroupID: groupHistory,
		Long: `Bring the whole root file system to the state of a snapshot, and print its id.
The present is captured first, so that nothing is lost by going back. Running
commands are stopped. The one of "coppice run" is asked to end first (SIGTERM),
and after --grace it is made to; it is started again there.

Where the snapshot has what its processes had in memory (commit --memory), they go on
from there, under the ids that their commands had; the processes that are left are kept
with their memory, too. With --files-only they do not.

With --in-place nothing is stopped:

Commands stand still for a moment, and go on over the files of REF. Directories and
files that are on both sides stay the same ones, so working directories,
watches and open descriptors hold: who appends to a log goes on in the one that
is seen. A file that is mapped or executed is replaced by a new one, and a
running program keeps what it runs. A directory that had been deleted comes back
as a new one; whoever still stands in the old one stays there.`,
		Example: `  coppice rewind box HEAD~1
  coppice rewind box @{5m}
  coppice rewind --in-place box v1
  coppice rewind box warm --files-only`,
		Args:              between(2, 2, "a sandbox and a REF"),
		ValidArgsFunction: a.nameThenRef(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			req.Node = args[1]
			switch {
			case grace < 0:
				return usagef("--grace %s: a time is wanted", grace)
			case cmd.Flags().Changed("grace") && grace < time.Millisecond:
				req.GraceMS = -1
			case cmd.Flags().Changed("grace"):
				req.GraceMS = grace.Milliseconds()
			}
			res, err := c.Checkout(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	cmd.Flags().BoolVar(&req.FilesOnly, "files-only", false, "go to the files alone, though there is memory")
	cmd.Flags().DurationVar(&grace, "grace", 2*time.Second,
		"`TIME` between SIGTERM and SIGKILL for the command of run; 0 is none")
	return cmd
}

// inPlace declares the flag of the commands that move HEAD.
func inPlace(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "in-place", false, "leave commands running, and change the files under them")
}

func (a *app) undo() *cobra.Command {
	var req wire.UndoRequest
	cmd := &cobra.Command{
		Use: "undo NAME [N] [flags]", Short: "Go N snapshots back", GroupID: groupHistory,
		Long: "Go N snapshots back (default: 1), and print where HEAD is then. What you leave is\nkept; redo " +
			"goes there again.",
		Example:           "  coppice undo box 2",
		Args:              between(1, 2, "a sandbox and a number"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.N = 1
			if len(args) == 2 {
				var err error
				if req.N, err = strconv.Atoi(args[1]); err != nil || req.N < 1 {
					return usagef("%q: a number of 1 or more is wanted", args[1])
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Undo(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	return cmd
}

func (a *app) redo() *cobra.Command {
	var req wire.RedoRequest
	cmd := &cobra.Command{
		Use: "redo NAME [flags]", Short: "Take the last undo back", GroupID: groupHistory,
		Example:           "  coppice redo box",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.Redo(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.moved(res)
		},
	}
	inPlace(cmd, &req.InPlace)
	return cmd
}
