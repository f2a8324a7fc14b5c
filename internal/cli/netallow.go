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
		Use: "allow NAME RULE... [flags]", Short: "Add or remove network rules of a running sandbox",
		Long: `Add allow rules to the policy of a sandbox whose network mode is rules,
permanently or with --for temporarily, and print the digest of the new policy.
With --deny, add deny rules. Rules take effect immediately; connections that are
now denied are closed. A deny rule always takes precedence over an allow rule.

A RULE is a name with ports (default: 443), as in example.com,
"*.example.com:443" or example.com:8000-8100, or addresses with required ports,
as in 10.0.0.0/8:5432. For UDP, prefix it with udp://. With ",private" at its
end, a name may resolve to private addresses. Changes are recorded; see "coppice
net log". Policy files are not modified.

--remove removes allow rules, and with --deny deny rules, whatever their origin
and lifetime. RULE can then also be the name of a rule, or its text in "coppice
policy show".`,
		Example: `  coppice net allow box example.com
  coppice net allow box pypi.org files.pythonhosted.org --for 10m
  coppice net allow box tracker.example.com --deny
  coppice net allow box example.com --remove`,
		Args: between(2, -1, "the name of a sandbox and rules"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if lasts < 0 || cmd.Flags().Changed("for") && lasts < time.Millisecond {
				return usagef("invalid --for %s: must be positive", lasts)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			req := wire.AllowRequest{ForMS: lasts.Milliseconds()}
			if removes && cmd.Flags().Changed("for") {
				return usagef("--for and --remove are mutually exclusive")
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
					a.note("from the next start")
				}
				_, err := fmt.Fprintln(w, tty.Clean(res.Policy))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&denies, "deny", false, "add deny rules")
	f.BoolVar(&removes, "remove", false, "remove the rules")
	f.DurationVar(&lasts, "for", 0, "remove the rules after `TIME`, as in 10m (default: never)")
	return cmd
}
