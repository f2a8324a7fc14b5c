package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) systemGC() *cobra.Command {
	var (
		req    wire.GCRequest
		within time.Duration
	)
	cmd := &cobra.Command{
		Use: "gc [flags] [NAME...]", Short: "Delete unused data and thin out old history",
		Long: `Delete snapshots and layers that no sandbox needs, and print the deleted
snapshots, one per line. Forks of finished tournaments are removed first, unless
commands run in them.

With --keep flags, first thin out the history of the named sandboxes, or of all:
a snapshot that no --keep flag covers is removed, and its changes are merged
into the next one. Hours, days and weeks are in UTC. These snapshots always
stay: HEAD, tagged ones, those of snapshot create, branches and their branching
points, the first one, those that forks started from, and those that redo needs.
Without a --keep flag no history is removed.`,
		Example: "  coppice system gc --dry-run\n" +
			"  coppice system gc --keep-last 20 --keep-hourly 24 --keep-daily 7 box",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.names(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Sandboxes = args
			if within < 0 || within%time.Millisecond != 0 {
				return usagef("invalid --keep-within %s: must be whole milliseconds", within)
			}
			req.Keep.WithinMS = within.Milliseconds()
			if len(args) > 0 && req.Keep == (wire.Keep{}) {
				return usagef("thinning out named sandboxes requires a --keep flag")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			show, done := a.progress()
			res, err := c.GC(ctx, req, show)
			done()
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error { return a.removed(w, res) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&req.DryRun, "dry-run", false, "print what would be removed without removing it")
	f.IntVar(&req.Keep.Last, "keep-last", 0, "keep the newest `N` snapshots")
	f.DurationVar(&within, "keep-within", 0, "keep all snapshots newer than `TIME`, as in 36h")
	f.IntVar(&req.Keep.Hourly, "keep-hourly", 0, "keep the newest snapshot of each of the last `N` hours")
	f.IntVar(&req.Keep.Daily, "keep-daily", 0, "keep the newest snapshot of each of the last `N` days")
	f.IntVar(&req.Keep.Weekly, "keep-weekly", 0, "keep the newest snapshot of each of the last `N` weeks")
	return cmd
}

// removed prints what gc removed: an ID per line, with a description if it was a snapshot in a history.
func (a *app) removed(w io.Writer, res wire.GCResult) error {
	verb, dropped := "freed", "dropped"
	if res.DryRun {
		verb, dropped = "would free", "would remove"
	}
	if len(res.Forks) > 0 {
		removed := "removed"
		if res.DryRun {
			removed = "would remove"
		}
		a.note("%s %s of tournaments", removed, tty.Count(len(res.Forks), "fork"))
	}
	if len(res.Dropped) > 0 {
		a.note("%s %s from the history", dropped, tty.Count(len(res.Dropped), "snapshot"))
	}
	a.note("%s %s: %s, %s%s", verb, tty.Bytes(res.Bytes), tty.Count(len(res.Removed)-len(res.Dropped), "snapshot"),
		tty.Count(res.Layers, "layer"), images(res.Images))
	nodes := map[string]wire.Snapshot{}
	for _, n := range res.Dropped {
		nodes[n.ID] = n
	}
	var t tty.Table
	for _, id := range res.Removed {
		n, ok := nodes[id]
		if !ok {
			t.Row(tty.Clean(id))
			continue
		}
		t.Row(tty.Clean(id), tty.Clean(n.Sandbox), tty.Ago(n.Created, a.now()), oneLine(n.Message, 60))
	}
	if err := t.Write(w); err != nil {
		return fmt.Errorf("write the list: %w", err)
	}
	return nil
}

// images formats the number of memory images, if there are any.
func images(n int) string {
	if n == 0 {
		return ""
	}
	return "; " + tty.Count(n, "memory image")
}
