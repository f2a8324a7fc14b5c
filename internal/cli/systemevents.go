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
A line has the time, the event, the snapshot, its message and the size of the
change; --json prints the fields of GET /v1/events. Kinds are created, started,
stopped, exec, exited, run, restarted, snapshot, checkout, mark, fork, tag,
deleted, removed, tournament, port, ask (a pending network request), and dropped
(events were missed). Others may be added.

The daemon remembers the newest 4096 events of all sandboxes while it runs, and
does not exit while a client follows them. Press Ctrl-C to stop.`

// watching has the flags of events and log --follow.
type watching struct {
	since     uint64
	fromStart bool
	most      int
}

func (w *watching) flags(cmd *cobra.Command) {
	w.position(cmd)
	cmd.Flags().IntVarP(&w.most, "max-count", "n", 0, "exit after `N` events")
}

// position adds the flags for the start of the stream.
func (w *watching) position(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Uint64Var(&w.since, "since", 0, "start after event `SEQ`, the \"seq\" of --json")
	f.BoolVar(&w.fromStart, "from-start", false, "start with the oldest available event")
}

// after returns the event number to start after.
func (w *watching) after(cmd *cobra.Command) uint64 {
	switch {
	case w.fromStart:
		return 0
	case cmd.Flags().Changed("since"):
		return w.since
	}
	return wire.EventsNow
}

func (a *app) systemEvents() *cobra.Command {
	var w watching
	cmd := &cobra.Command{
		Use: "events [flags]", Short: "Follow the events of all sandboxes",
		Long: `Show the events of all sandboxes as they happen, one per line.
` + watchLong,
		Example: "  coppice system events --json >> events.ndjson",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.follow(cmd, "", w)
		},
	}
	w.flags(cmd)
	return cmd
}

// errEnough ends a stream after the requested number of events.
var errEnough = errors.New("enough events")

// follow shows events until Ctrl-C.
func (a *app) follow(cmd *cobra.Command, name string, w watching) error {
	switch {
	case w.most < 0:
		return usagef("invalid --max-count %d: must be at least 1", w.most)
	case w.fromStart && cmd.Flags().Changed("since"):
		return usagef("--since and --from-start are mutually exclusive")
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	last, seen, again := w.after(cmd), 0, cmd.CommandPath()
	if name != "" {
		again += " --follow " + name
	}
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
			Hint: fmt.Sprintf("continue with: %s --since %d", again, last)}
	}
	return err
}

// event formats an event; all includes the name of the sandbox.
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
		cause = "exec" // how then formats only the exit code
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
