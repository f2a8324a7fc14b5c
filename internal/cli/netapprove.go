package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

const answerLong = `
The HOST is a name with ports (default: 443), as "coppice net log NAME --asking"
shows it, or another rule of "coppice net allow". It need not be pending: a
client that was denied earlier succeeds when it tries again. Decisions are
recorded; see "coppice net log".

A HOST such as grant:ID is a request that would carry the secret of a grant with
--ask. The answer holds for that request; with --ask first, an approval also
holds for later ones to its host. It changes no rule.`

func (a *app) netApprove() *cobra.Command {
	return a.answering(&cobra.Command{
		Use: "approve NAME HOST[:PORT]... [flags]", Short: "Approve a pending network request",
		Long: `Approve pending requests of a sandbox created with --ask, permanently or with
--for temporarily: add an allow rule to its policy, and print the digest of the
new policy. Held queries and connections continue immediately.
` + answerLong + `

A name without a port may be resolved, and connected to on port 443; other ports
must be approved separately.`,
		Example: `  coppice net log box --asking
  coppice net approve box files.example.com
  coppice net approve box deb.example.com:80 --for 10m`,
	}, (*client.Client).Approve)
}

// answering completes a command that answers pending requests.
func (a *app) answering(
	cmd *cobra.Command,
	answer func(*client.Client, context.Context, string, wire.AnswerRequest) (wire.AnswerResult, error),
) *cobra.Command {
	var lasts time.Duration
	cmd.Args, cmd.ValidArgsFunction = between(2, -1, "the name of a sandbox and hosts"), a.answerable
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if lasts < 0 || cmd.Flags().Changed("for") && lasts < time.Millisecond {
			return usagef("invalid --for %s: must be positive", lasts)
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		res, err := answer(c, cmd.Context(), args[0], wire.AnswerRequest{Rules: args[1:], ForMS: lasts.Milliseconds()})
		if err != nil {
			return err
		}
		a.warn(res.Warnings)
		return a.print(res, func(w io.Writer) error {
			for _, q := range res.Settled {
				a.note("%s is no longer pending", tty.Clean(q.Place))
			}
			if len(res.Settled) == 0 {
				a.note("no request was pending")
			}
			switch {
			case res.Until != nil:
				a.note("until %s", res.Until.Local().Format(time.DateTime))
			case !res.Live:
				a.note("from the next start")
			}
			if res.Policy == "" { // the answer changed no rule
				return nil
			}
			_, err := fmt.Fprintln(w, tty.Clean(res.Policy))
			return err
		})
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "remove the rules after `TIME`, as in 10m (default: never)")
	return cmd
}

// answerable completes the name of a sandbox, and then its pending requests.
func (a *app) answerable(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.names(1)(cmd, args, begun)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (places []string, _ error) {
		res, err := c.PendingRequests(ctx, args[0])
		for _, q := range res.Asking {
			places = append(places, tty.Clean(q.Place))
		}
		return places, err
	})
}
