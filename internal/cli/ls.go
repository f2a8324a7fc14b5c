package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) ls() *cobra.Command {
	var chosen choosing
	cmd := &cobra.Command{
		Use: "ls [flags]", Aliases: []string{"list"}, Short: "List sandboxes", GroupID: groupBox,
		Long: `List sandboxes. With --quiet, print only names, one per line. Forks of a
tournament are listed as "until gc", and forks in which a trial runs as "trial".

--filter lists those that satisfy a KEY=VALUE:

  label=KEY[=VALUE]  has this label
  name=PATTERN       has a name that matches the glob pattern
  state=STATE        is running, paused, stopped, unavailable or quarantined
  tier=TIER, driver=DRIVER
                     has this tier or storage driver
  origin=NAME        is a fork of the sandbox that had this name

Filters with the same key (of labels: with the same KEY) are alternatives;
filters with different keys must all be satisfied.`,
		Example: `  coppice ls
  coppice ls --filter label=team=web --filter state=running
  coppice ls --quiet --filter 'name=try-*'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := chosen.list(cmd.Context(), c)
			if err != nil {
				return err
			}
			return a.print(wire.ListResult{Sandboxes: list}, func(w io.Writer) error {
				if a.quiet {
					for _, sb := range list {
						if _, err := fmt.Fprintln(w, tty.Clean(sb.Name)); err != nil {
							return err
						}
					}
					return nil
				}
				var t tty.Table
				t.Row("NAME", "STATE", "HEAD", "TIER", "DRIVER", "NET", "USER", "FROM", "MADE")
				for _, sb := range list {
					state := stateOf(sb)
					if sb.Procs > 0 {
						state = fmt.Sprintf("%s (%d)", state, sb.Procs)
					}
					switch {
					case sb.TrialOf != "":
						state += ", trial"
					case sb.Tournament != "":
						state += ", until gc"
					}
					t.Row(tty.Clean(sb.Name), tty.Clean(state), tty.Clean(sb.Head), tty.Clean(sb.Tier), tty.Clean(sb.Driver),
						tty.Clean(sb.Net), tty.Clean(sb.User), tty.Cut(tty.Clean(sb.From), 40), tty.Ago(sb.Created, a.now()))
				}
				return t.Write(w)
			})
		},
	}
	chosen.flag(a, cmd, "f")
	return cmd
}
