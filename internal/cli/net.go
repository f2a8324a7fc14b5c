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

// recent is how many events of before net --follow begins with.
const recent = 10

func (a *app) net() *cobra.Command {
	var (
		follows, denied, asking bool
		most                    int
	)
	cmd := &cobra.Command{
		Use: "net NAME [flags]", Short: "Show what a sandbox reached, and what it was refused", GroupID: groupRun,
		Long: `Show what happened between a sandbox and the network, the newest last: names that
were looked up (dns), connections (connect, and end with the bytes in and out), what
was refused and why (deny), what waits for a person and what came of that (ask),
changes of the rules (policy), and decoys that were opened, or of which a token was to
be sent (decoy). What is refused again and again is counted. The last
line is what is open now, where the sandbox is live. With --asking it is what waits for
a person now, and for how long yet: of a sandbox that was made with --ask.

It is kept for the sandbox, the newest 4 to 8 MiB of it, and not with snapshots.
But for decoys, nothing is known of sandboxes with the host's network, and there is
nothing to know where the network is off without rules. With --follow it goes on until Ctrl-C, and
--json writes one event a line.`,
		Example: `  coppice net log box
  coppice net log box --denied -n 20
  coppice net log box --asking
  coppice net log box --follow --json | jq -r 'select(.kind == "deny").name'`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed("max-count")
			if most < -1 || most == 0 && !follows {
				return &usageError{msg: fmt.Sprintf("--max-count %d: a number of events is wanted", most),
					hint: "-1 is all that are kept"}
			}
			if asking {
				if follows || denied || given {
					return usagef("--asking goes with no other flag of net")
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
	f.BoolVar(&follows, "follow", false, "go on with what happens from now on")
	f.BoolVar(&denied, "denied", false, "only what was refused")
	f.BoolVar(&asking, "asking", false, "what waits for a person now")
	f.IntVarP(&most, "max-count", "n", 100,
		"the newest `N`, and with --follow 10 unless it is given; -1 is all that are kept")
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
	refused := ""
	err = a.print(res, func(w io.Writer) error {
		for _, ev := range res.Events {
			if ev.Kind == wire.NetDeny && ev.Name != "" && slices.Contains([]string{"dns", "tcp", "udp"}, ev.Proto) {
				refused = place(ev)
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
	if err == nil && refused != "" {
		a.note("ask why: coppice net why %s %s; let it: coppice net allow %[1]s %[2]s", tty.Clean(name), refused)
	}
	return err
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

// netEvent is the line of an event.
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
	if ev.Kind == wire.NetEnd || ev.Kind == wire.NetAnswer {
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
	if ev.Kind == wire.NetPolicy {
		add(p.Dim(oneLine(ev.Policy, 19))) // the beginning of a digest tells it from others
	}
	if ev.Count > 1 {
		add(p.Yellow(strconv.Itoa(ev.Count) + " times"))
	}
	return strings.Join(parts, "  ")
}

// answered says what came of a question, or until when it waits.
func answered(ev wire.NetEvent) string {
	switch {
	case ev.Verdict == wire.VerdictAsk:
		return "waits for a person until " + ev.Until.Local().Format("15:04:05")
	case ev.Verdict == wire.VerdictAllow:
		return "allowed"
	case ev.Rule != "":
		return "denied"
	}
	return oneLine(ev.Reason, 200)
}

// place is where an event leads, as a rule in its short form has it.
func place(ev wire.NetEvent) string {
	return tty.Clean(ev.Place())
}

// netNow is the line of what is open.
func (a *app) netNow(n wire.NetNow) string {
	s := fmt.Sprintf("now: %s open; since the start %s in, %s out", tty.Count(n.Conns, "connection"), tty.Bytes(n.In),
		tty.Bytes(n.Out))
	if n.Flows > 0 {
		s = strings.Replace(s, " open;", ", "+tty.Count(n.Flows, "flow")+" open;", 1)
	}
	if len(n.Asking) > 0 {
		s += "; " + tty.Count(len(n.Asking), "question") + " for a person (--asking)"
	}
	if n.EventsLost > 0 {
		s += "; " + tty.Count(int(n.EventsLost), "event") + " found no room"
	}
	return a.palette().Dim(s)
}

func (a *app) why() *cobra.Command {
	return &cobra.Command{
		Use: "why NAME HOST[:PORT] [METHOD PATH]", Short: "Say what a sandbox may reach, and which rule says so",
		GroupID: groupRun,
		Long: `Say what would be decided about a place in the network by the policy that is in force
in a sandbox, by which rule, and what to add where it is denied. The port is 443 where
none is given; udp:// before the host asks about UDP. METHOD and PATH are those of an
HTTP request.

Nothing is connected to, and the name is not looked up: when it leads to an address
that is of no public network, it is denied even so, unless a rule names the address.`,
		Example: `  coppice net why box pypi.org
  coppice net why box 10.0.0.7:5432
  coppice net why box api.example.com POST /v1/items`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 3 {
				return usagef("why takes METHOD and PATH, or neither")
			}
			return between(2, 4, "the name of a sandbox and a host")(cmd, args)
		},
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			req := wire.WhyRequest{Host: args[1]}
			if len(args) == 4 {
				req.Method, req.Path = args[2], args[3]
			}
			res, err := c.Why(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) error {
				var t tty.Table
				t.Row(tty.Clean(res.Verdict), tty.Clean(res.Place)+": "+tty.Clean(res.Reason))
				for _, row := range [][2]string{{"rule", res.Rule}, {"by", res.At}, {"add", res.Hint}, {"policy", res.Policy}} {
					if row[1] != "" {
						t.Row(row[0], tty.Clean(row[1]))
					}
				}
				if res.Until != nil {
					t.Row("until", res.Until.Local().Format(time.DateTime))
				}
				if res.Allow && res.Verdict == wire.VerdictAsk {
					t.Row("or", "coppice net approve "+tty.Clean(args[0])+" "+tty.Clean(res.Place))
				} else if res.Allow {
					t.Row("or", "coppice net allow "+tty.Clean(args[0])+" "+tty.Clean(res.Place))
				}
				if res.Denies {
					t.Row("or", "coppice net allow "+tty.Clean(args[0])+" "+tty.Word(tty.Clean(res.Rule))+" --deny --remove")
				}
				return t.Write(w)
			})
		},
	}
}

func (a *app) allow() *cobra.Command {
	var (
		denies, removes bool
		lasts           time.Duration
	)
	cmd := &cobra.Command{
		Use: "allow NAME RULE... [flags]", Short: "Change what a sandbox may reach, while it runs", GroupID: groupRun,
		Long: `Add rules to the policy of a sandbox that keeps to rules, for good or with --for for
some time, and print the digest of the policy in force then. It holds at once for
processes that run; what is denied from now on is cut off. What is denied stays
denied, whatever is allowed. With --deny the rules deny.

A RULE is a name with ports (443 where none are given), as in example.com,
"*.example.com:443" or example.com:8000-8100; or addresses, which always name their
ports, as in 10.0.0.0/8:5432; udp:// before it is for UDP. Each change is noted, and
"coppice net log" shows it. The files that a policy came from are left as they are.

--remove takes rules back, whoever said them, and whether they hold for a time or for
good; with --deny those that deny. RULE is then also the name of a rule, or its text as
"coppice policy show" has it.`,
		Example: `  coppice net allow box example.com
  coppice net allow box pypi.org files.pythonhosted.org --for 10m
  coppice net allow box tracker.example.com --deny
  coppice net allow box example.com --remove`,
		Args: between(2, -1, "the name of a sandbox and rules"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasts < 0 || cmd.Flags().Changed("for") && lasts < time.Millisecond {
				return usagef("--for %s: a time is wanted", lasts)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			req := wire.AllowRequest{ForMS: lasts.Milliseconds()}
			if removes && cmd.Flags().Changed("for") {
				return usagef("--for does not go with --remove")
			}
			rules := args[1:]
			switch {
			case denies && removes:
				req.RemoveDeny = rules
			case denies:
				req.Deny = rules
			case removes:
				req.RemoveAllow = rules
			default:
				req.Allow = rules
			}
			res, err := c.Allow(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			a.warn(res.Warnings)
			return a.print(res, func(w io.Writer) error {
				switch {
				case res.Until != nil:
					a.note("until %s", res.Until.Local().Format(time.DateTime))
				case !res.Live:
					a.note("from the next start on")
				}
				_, err := fmt.Fprintln(w, tty.Clean(res.Policy))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&denies, "deny", false, "the rules deny")
	f.BoolVar(&removes, "remove", false, "take the rules back")
	f.DurationVar(&lasts, "for", 0, "the rules end after `TIME`, as in 10m; without it they stay")
	return cmd
}
