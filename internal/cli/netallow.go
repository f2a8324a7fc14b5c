package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) netAllow() *cobra.Command {
	var (
		denies, removes bool
		lasts           time.Duration
	)
	cmd := &cobra.Command{
		Use: "allow NAME RULE... [flags]", Short: "Change what a sandbox may reach, while it runs",
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
