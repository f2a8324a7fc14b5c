package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// recent is the number of earlier events with which net log --follow starts.
const recent = 10

func (a *app) netLog() *cobra.Command {
	var (
		follows, denied, asking bool
		most                    int
	)
	cmd := &cobra.Command{
		Use: "log NAME [flags]", Short: "Show the network activity of a sandbox",
		Long: `Show the network activity of a sandbox, newest last: lookups (dns), connections
(connect, and end with the bytes in and out), denials with their reasons (deny),
pending requests and decisions (ask), rule changes (policy), and honeytokens
that were opened or almost sent (decoy). Repeated denials are counted. For a
live sandbox the last line summarizes the open connections. --asking shows the
pending requests of a sandbox created with --ask, with the time left.

The newest 4 to 8 MiB are kept, per sandbox and independent of snapshots. In
network mode host, and in mode off without rules, only honeytokens are recorded.
--follow shows new events until Ctrl-C. --json prints one event per line.`,
		Example: `  coppice net log box
  coppice net log box --denied -n 20
  coppice net log box --asking
  coppice net log box --follow --json | jq -r 'select(.kind == "deny").name'`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed("max-count")
			if most < -1 || most == 0 && !follows {
				return &usageError{msg: fmt.Sprintf("invalid --max-count %d: must not be less than -1", most),
					hint: "use -1 for all"}
			}
			if asking {
				if follows || denied || given {
					return usagef("--asking cannot be combined with other flags of net log")
				}
				return a.listAsking(cmd.Context(), args[0])
			}
			req := wire.NetRequest{Last: most}
			if denied {
				req.Kinds = []string{wire.NetDeny}
			}
			if follows {
				if !given {
					req.Last = recent
				}
				return a.followNet(cmd.Context(), args[0], req)
			}
			return a.listNet(cmd.Context(), args[0], req)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&follows, "follow", false, "follow new activity")
	f.BoolVar(&denied, "denied", false, "show only denied requests")
	f.BoolVar(&asking, "asking", false, "show requests that wait for a decision")
	f.IntVarP(&most, "max-count", "n", 100,
		"show the newest `N` events (with --follow: 10); -1 is all")
	return cmd
}

func (a *app) listNet(ctx context.Context, name string, req wire.NetRequest) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.Net(ctx, name, req)
	if err != nil {
		return err
	}
	refused, fix := "", ""
	err = a.print(res, func(w io.Writer) error {
		for _, ev := range res.Events {
			if ev.Kind == wire.NetDeny && ev.Name != "" && slices.Contains([]string{"dns", "tcp", "udp"}, ev.Proto) {
				refused, fix = place(ev), tty.Clean(ev.Fix)
			}
			if _, err := fmt.Fprintln(w, a.netEvent(ev)); err != nil {
				return err
			}
		}
		if res.Now == nil {
			return nil
		}
		_, err := fmt.Fprintln(w, a.netNow(*res.Now))
		return err
	})
	if next := whatNext(tty.Clean(name), refused, fix); err == nil && next != "" {
		a.note("%s", next)
	}
	return err
}

// whatNext returns the commands that explain and allow a denial, for a user to copy into a shell; "" for none. The
// sandbox chose refused, which need not be a valid name; the rule fix contains it.
func whatNext(name, refused, fix string) string {
	switch {
	case refused == "" || strings.HasPrefix(refused, "-"): // it would be read as a flag, and is never a host
		return ""
	case fix != "": // the rules allow the name, but not its address
		return fmt.Sprintf("to allow %s at that address: coppice net allow %s %s", refused, name, tty.Word(fix))
	}
	return fmt.Sprintf("see why: coppice net why %s %s; allow it: coppice net allow %[1]s %[2]s", name, tty.Word(refused))
}

func (a *app) followNet(ctx context.Context, name string, req wire.NetRequest) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	err = c.NetEvents(ctx, name, req, func(ev wire.NetEvent) error {
		if err := a.print(ev, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, a.netEvent(ev))
			return err
		}); err != nil {
			return err
		}
		return a.out.Flush()
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// netEvent formats an event.
func (a *app) netEvent(ev wire.NetEvent) string {
	p := a.palette()
	at := ev.Time.Local()
	form := "15:04:05.000"
	if y, m, d := at.Date(); at.Format(time.DateOnly) != a.now().Format(time.DateOnly) && y > 1 {
		form = fmt.Sprintf("%04d-%02d-%02d 15:04:05", y, m, d)
	}
	colour := p.Dim
	switch ev.Kind {
	case wire.NetDeny, wire.NetDecoy:
		colour = p.Red
	case wire.NetConnect, wire.NetHTTP:
		colour = p.Green
	case wire.NetPolicy:
		colour = p.Bold
	case wire.NetAsk:
		colour = p.Yellow
	}
	parts := []string{p.Dim(at.Format(form)), colour(fmt.Sprintf("%-7s", tty.Clean(ev.Kind)))}
	add := func(s string) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	add(oneLine(ev.Decoy, 200))
	add(place(ev))
	if ev.Method != "" {
		add(oneLine(ev.Method+" "+ev.Path, 200))
	}
	if ev.Status != 0 {
		add(strconv.Itoa(ev.Status))
	}
	if ev.Name != "" && ev.Addr != "" {
		add(p.Dim("(" + tty.Clean(ev.Addr) + ")"))
	}
	if ev.Kind == wire.NetEnd && ev.Proto != "dns" || ev.Kind == wire.NetAnswer {
		add(tty.Bytes(ev.In) + " in, " + tty.Bytes(ev.Out) + " out")
	}
	if ev.Kind == wire.NetAsk {
		add(answered(ev))
	}
	if ev.Kind == wire.NetDeny || ev.Kind == wire.NetPolicy || ev.Kind == wire.NetEnd || ev.Kind == wire.NetAnswer ||
		ev.Kind == wire.NetDecoy {
		add(oneLine(ev.Reason, 200))
	}
	if ev.Verdict == wire.VerdictStop {
		add("the processes were killed")
	}
	if ev.Rule != "" {
		add(p.Dim("[" + oneLine(ev.Rule, 200) + "]"))
	}
	if len(ev.Grants) > 0 {
		add("grant " + oneLine(strings.Join(ev.Grants, ", "), 200))
	}
	if ev.Kind == wire.NetPolicy {
		add(p.Dim(oneLine(ev.Policy, 19))) // the beginning of a digest identifies it
	}
	if ev.Count > 1 {
		add(p.Yellow(strconv.Itoa(ev.Count) + " times"))
	}
	return strings.Join(parts, "  ")
}

// answered describes the decision on a request, or its deadline.
func answered(ev wire.NetEvent) string {
	switch {
	case ev.Verdict == wire.VerdictAsk:
		return "pending until " + ev.Until.Local().Format("15:04:05")
	case ev.Verdict == wire.VerdictAllow:
		return "allowed"
	case ev.Rule != "":
		return "denied"
	}
	return oneLine(ev.Reason, 200)
}

// place returns the destination of an event as a rule in short form.
func place(ev wire.NetEvent) string {
	return tty.Clean(ev.Place())
}

// netNow formats the open connections.
func (a *app) netNow(n wire.NetNow) string {
	s := fmt.Sprintf("now: %s open; since the start %s in, %s out", tty.Count(n.Conns, "connection"), tty.Bytes(n.In),
		tty.Bytes(n.Out))
	if n.Flows > 0 {
		s = strings.Replace(s, " open;", ", "+tty.Count(n.Flows, "flow")+" open;", 1)
	}
	if len(n.Asking) > 0 {
		s += "; " + tty.Count(len(n.Asking), "question") + " pending (--asking)"
	}
	if n.EventsLost > 0 {
		s += "; " + tty.Count(int(n.EventsLost), "event") + " lost"
	}
	return a.palette().Dim(s)
}

// listAsking prints the pending requests.
func (a *app) listAsking(ctx context.Context, name string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.PendingRequests(ctx, name)
	if err != nil {
		return err
	}
	err = a.print(res, func(w io.Writer) error {
		if len(res.Asking) == 0 {
			return nil
		}
		var t tty.Table
		title := []string{"PLACE", "KIND", "LEFT", "HELD"}
		if slices.ContainsFunc(res.Asking, func(q wire.NetQuestion) bool { return q.Grant != "" }) {
			title = append(title, "REQUEST")
		}
		t.Row(title...)
		for _, q := range res.Asking {
			left := max(q.Until.Sub(a.now()), 0).Round(time.Second)
			kind, request := q.Proto, ""
			if q.Grant != "" {
				kind, request = "grant", "secret of "+q.Grant+": "+q.Method+" "+q.Name+q.Path
			}
			t.Row(tty.Clean(q.Place), tty.Clean(kind), left.String(), strconv.Itoa(q.Waiting), oneLine(request, 200))
		}
		return t.Write(w)
	})
	if err == nil && len(res.Asking) > 0 {
		a.note("answer: coppice net approve %s %s; or: coppice net deny %[1]s %[2]s", tty.Clean(name),
			tty.Word(tty.Clean(res.Asking[0].Place)))
	}
	return err
}
