package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) gc() *cobra.Command {
	var (
		req    wire.GCRequest
		within time.Duration
	)
	cmd := &cobra.Command{
		Use: "gc [flags] [NAME...]", Short: "Free what nothing refers to, and thin out old history", GroupID: groupStore,
		Long: `Remove snapshots and layers that no sandbox needs, and print the removed
snapshots, one a line. The forks of tournaments that have ended are removed before,
unless commands run in them.

With --keep flags, first thin out the history of the named sandboxes, or of all:
a snapshot that no --keep flag names is dropped, and what it changed is merged
into the next one. Hours, days and weeks are counted in UTC. Whatever the flags
say, these stay: HEAD, tagged snapshots, those of commit, the ends of branches and
where they part, the first snapshot, what a fork began at, and what redo would
bring back. Nothing is dropped unless a --keep flag is given.`,
		Example:           "  coppice system gc --dry-run\n  coppice system gc --keep-last 20 --keep-hourly 24 --keep-daily 7 box",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.names(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Sandboxes = args
			if within < 0 || within%time.Millisecond != 0 {
				return usagef("--keep-within %s is not a time of whole milliseconds", within)
			}
			req.Keep.WithinMS = within.Milliseconds()
			if len(args) > 0 && req.Keep == (wire.Keep{}) {
				return usagef("sandboxes were named, but no --keep flag says what to keep of them")
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
	f.BoolVar(&req.DryRun, "dry-run", false, "remove nothing, and say what would be")
	f.IntVar(&req.Keep.Last, "keep-last", 0, "keep the newest `N` snapshots")
	f.DurationVar(&within, "keep-within", 0, "keep all snapshots younger than `TIME`, as in 36h")
	f.IntVar(&req.Keep.Hourly, "keep-hourly", 0, "keep the newest snapshot of each of the last `N` hours")
	f.IntVar(&req.Keep.Daily, "keep-daily", 0, "keep the newest snapshot of each of the last `N` days")
	f.IntVar(&req.Keep.Weekly, "keep-weekly", 0, "keep the newest snapshot of each of the last `N` weeks")
	return cmd
}

// removed writes what gc removed: an id a line, and beside it what it was where
// that was dropped from a history.
func (a *app) removed(w io.Writer, res wire.GCResult) error {
	verb, dropped := "freed", "dropped"
	if res.DryRun {
		verb, dropped = "would free", "would drop"
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
