package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

const answerLong = `
The HOST is a name with ports (443 where none are given), as "coppice net log NAME --asking"
shows it, or any other rule of "coppice net allow". It counts whether or not something waits
for it at this moment: who came too early finds it at the next try. Each answer is
noted, and "coppice net log" shows it.`

func (a *app) approve() *cobra.Command {
	return a.answering(&cobra.Command{
		Use: "approve NAME HOST[:PORT]... [flags]", Short: "Let a sandbox reach what it waits for", GroupID: groupRun,
		Long: `Let pass what waits for a person in a sandbox that was made with --ask, for good or with
--for for some time: a rule is added to its policy, and the digest of the policy in
force then is printed. Queries and connections that are held go on at once.
` + answerLong + ` A name without a port is looked up, and may be
connected to on port 443; another port is another question, unless it is named here.`,
		Example: `  coppice net log box --asking
  coppice net approve box files.example.com
  coppice net approve box deb.example.com:80 --for 10m`,
	}, (*client.Client).Approve)
}

func (a *app) deny() *cobra.Command {
	return a.answering(&cobra.Command{
		Use: "deny NAME HOST[:PORT]... [flags]", Short: "Keep from a sandbox what it waits for", GroupID: groupRun,
		Long: `Deny what waits for a person in a sandbox that was made with --ask, for good or with
--for for some time: a rule that denies is added to its policy, and the digest of the
policy in force then is printed. What is held is refused at once, and not asked about
again. Without a port every port is denied. What is denied stays denied, whatever is
allowed.
` + answerLong,
		Example: `  coppice net deny box tracker.example.com
  coppice net deny box ads.example.com --for 1h`,
	}, (*client.Client).Deny)
}

// answering completes a command that answers what waits for a person.
func (a *app) answering(
	cmd *cobra.Command,
	answer func(*client.Client, context.Context, string, wire.AnswerRequest) (wire.AnswerResult, error),
) *cobra.Command {
	var lasts time.Duration
	cmd.Args, cmd.ValidArgsFunction = between(2, -1, "the name of a sandbox and hosts"), a.answerable
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if lasts < 0 || cmd.Flags().Changed("for") && lasts < time.Millisecond {
			return usagef("--for %s: a time is wanted", lasts)
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
				a.note("%s waits no longer", tty.Clean(q.Place))
			}
			if len(res.Settled) == 0 {
				a.note("nothing waited for it")
			}
			switch {
			case res.Until != nil:
				a.note("until %s", res.Until.Local().Format(time.DateTime))
			case !res.Live:
				a.note("from the next start on")
			}
			_, err := fmt.Fprintln(w, tty.Clean(res.Policy))
			return err
		})
	}
	cmd.Flags().DurationVar(&lasts, "for", 0, "the rules end after `TIME`, as in 10m; without it they stay")
	return cmd
}

// answerable completes names of sandboxes, and then what waits in the one that was named.
func (a *app) answerable(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.names(1)(cmd, args, begun)
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) (places []string, _ error) {
		res, err := c.Asking(ctx, args[0])
		for _, q := range res.Asking {
			places = append(places, tty.Clean(q.Place))
		}
		return places, err
	})
}

// listAsking shows what waits for a person.
func (a *app) listAsking(ctx context.Context, name string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.Asking(ctx, name)
	if err != nil {
		return err
	}
	err = a.print(res, func(w io.Writer) error {
		if len(res.Asking) == 0 {
			return nil
		}
		var t tty.Table
		t.Row("PLACE", "KIND", "LEFT", "HELD")
		for _, q := range res.Asking {
			left := max(q.Until.Sub(a.now()), 0).Round(time.Second)
			t.Row(tty.Clean(q.Place), tty.Clean(q.Proto), left.String(), strconv.Itoa(q.Waiting))
		}
		return t.Write(w)
	})
	if err == nil && len(res.Asking) > 0 {
		a.note("answer: coppice net approve %s %s; or: coppice net deny %[1]s %[2]s", tty.Clean(name), tty.Clean(res.Asking[0].Place))
	}
	return err
}
