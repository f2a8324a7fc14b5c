package cli

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) netWhy() *cobra.Command {
	return &cobra.Command{
		Use:   "why NAME HOST[:PORT] [METHOD PATH]",
		Short: "Explain whether a sandbox may reach a host, and which rule decides",
		Long: `Show how the policy in force in a sandbox decides about a destination, by which
rule, and which rule to add if it is denied. The default port is 443; for UDP,
prefix the host with udp://. METHOD and PATH are those of an HTTP request.

Nothing is connected to, and the name is not resolved. An allowed name is denied
for an address that is not public, unless its rule is private or a rule names
the address; the address is the one last returned or refused to the sandbox.`,
		Example: `  coppice net why box pypi.org
  coppice net why box 10.0.0.7:5432
  coppice net why box api.example.com POST /v1/items`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 3 {
				return usagef("why requires METHOD and PATH, or neither")
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
					t.Row("or", "coppice net approve "+tty.Clean(args[0])+" "+tty.Word(tty.Clean(res.Place)))
				} else if res.Fix != "" {
					t.Row("or", "coppice net allow "+tty.Clean(args[0])+" "+tty.Word(tty.Clean(res.Fix)))
				} else if res.Allow {
					t.Row("or", "coppice net allow "+tty.Clean(args[0])+" "+tty.Word(tty.Clean(res.Place)))
				}
				if res.Denies {
					t.Row("or", "coppice net allow "+tty.Clean(args[0])+" "+tty.Word(tty.Clean(res.Rule))+" --deny --remove")
				}
				return t.Write(w)
			})
		},
	}
}
