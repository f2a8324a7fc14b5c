package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

const watchLong = `
A line has the time, what happened, the snapshot, its message and how much it
changed; with --json it is a document with the fields of GET /v1/events. Kinds are
created, started, stopped, exec, exited, run, restarted, snapshot, checkout, mark,
fork, tag, deleted, removed, tournament, port, ask (a place in the network waits for a
person), and dropped, which says that events were missed. More may come.

The daemon remembers the newest 4096 events of all sandboxes for as long as it
runs, and as long as somebody watches it does not end by itself. Ctrl-C ends it.`

// watching is the flags of watch and events.
type watching struct {
	since     uint64
	fromStart bool
	most      int
}

func (w *watching) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Uint64Var(&w.since, "since", 0, "begin after event `SEQ`, which --json shows as \"seq\"")
	f.BoolVar(&w.fromStart, "from-start", false, "begin with the oldest event that is remembered")
	f.IntVarP(&w.most, "max-count", "n", 0, "end after `N` events")
}

// after is the number that the client is to begin after.
func (w *watching) after(cmd *cobra.Command) uint64 {
	switch {
	case w.fromStart:
		return 0
	case cmd.Flags().Changed("since"):
		return w.since
	}
	return wire.EventsNow
}

func (a *app) watch() *cobra.Command {
	var w watching
	cmd := &cobra.Command{
		Use: "watch NAME [flags]", Short: "Show what happens in a sandbox, as it happens", GroupID: groupHistory,
		Long: `Show snapshots, commands and moves of a sandbox as they happen, one a line, until
the sandbox is removed.
` + watchLong,
		Example: "  coppice log --follow box\n  coppice log --follow box --json --from-start | jq -r 'select(.kind == " +
			"\"snapshot\").message'",
		Args:              between(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.follow(cmd, args[0], w)
		},
	}
	w.flags(cmd)
	return cmd
}

func (a *app) events() *cobra.Command {
	var w watching
	cmd := &cobra.Command{
		Use: "events [flags]", Short: "Show what happens in all sandboxes, as it happens", GroupID: groupStore,
		Long: `Show what happens in all sandboxes as it happens, one a line.
` + watchLong,
		Example: "  coppice system events --json >> events.ndjson",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.follow(cmd, "", w)
		},
	}
	w.flags(cmd)
	return cmd
}

// errEnough ends a stream of events that has had as many as were asked for.
var errEnough = errors.New("enough events")

// follow shows events until Ctrl-C.
func (a *app) follow(cmd *cobra.Command, name string, w watching) error {
	switch {
	case w.most < 0:
		return usagef("--max-count %d: a number of 1 or more is wanted", w.most)
	case w.fromStart && cmd.Flags().Changed("since"):
		return usagef("--since and --from-start say different things")
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	last, seen := w.after(cmd), 0
	err = c.Events(ctx, name, last, func(ev wire.SandboxEvent) error {
		last = ev.Seq
		if err := a.print(ev, func(out io.Writer) error {
			_, err := fmt.Fprintln(out, a.event(ev, name == ""))
			return err
		}); err != nil {
			return err
		}
		if err := a.out.Flush(); err != nil {
			return err
		}
		if seen++; seen == w.most {
			return errEnough
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnough), errors.Is(ctx.Err(), context.Canceled):
		return nil
	case client.IsKind(err, client.KindUnavailable) && seen > 0:
		return &client.Error{Kind: client.KindUnavailable, Message: err.Error(), Err: err,
			Hint: fmt.Sprintf("go on with: %s --since %d", strings.TrimSpace(cmd.CommandPath()+" "+name), last)}
	}
	return err
}

// event is the line of an event; all says that the sandbox is to be named.
func (a *app) event(ev wire.SandboxEvent, all bool) string {
	p := a.palette()
	parts := []string{p.Dim(ev.Time.Local().Format("15:04:05.000"))}
	if all {
		parts = append(parts, p.Cyan(tty.Clean(ev.Sandbox)))
	}
	parts = append(parts, kindColour(p, ev)(fmt.Sprintf("%-8s", tty.Clean(ev.Kind))))
	if ev.Snapshot != "" {
		parts = append(parts, p.Yellow(tty.Clean(ev.Snapshot)))
	}
	if ev.Kind == wire.EventDropped && ev.Dropped > 0 {
		parts = append(parts, tty.Count(int(ev.Dropped), "event")+" missed")
	}
	if ev.Port != 0 {
		parts = append(parts, strconv.Itoa(ev.Port))
	}
	if m := oneLine(ev.Message, 100); m != "" {
		parts = append(parts, m)
	}
	if d := oneLine(ev.Detail, 100); d != "" {
		parts = append(parts, p.Dim("["+d+"]"))
	}
	cause := ev.Cause
	if cause == "" {
		cause = "exec" // of which how tells the exit code alone
	}
	if h := how(wire.Snapshot{Cause: cause, Exit: ev.Exit, Paths: ev.Paths, Bytes: ev.Bytes}); h != "" {
		parts = append(parts, p.Dim(h))
	}
	return strings.TrimRight(strings.Join(parts, "  "), " ")
}

func kindColour(p tty.Palette, ev wire.SandboxEvent) func(string) string {
	switch {
	case ev.Exit != nil && *ev.Exit != 0 && ev.Kind == wire.EventExited, ev.Kind == wire.EventDropped,
		ev.Kind == wire.EventLimit, ev.Kind == wire.EventDecoy, ev.Kind == wire.EventRemoved:
		return p.Red
	case ev.Kind == wire.EventSnapshot:
		return p.Green
	case ev.Kind == wire.EventAsk:
		return p.Yellow
	case ev.Kind == wire.EventCheckout, ev.Kind == wire.EventRestarted:
		return p.Bold
	}
	return p.Dim
}
