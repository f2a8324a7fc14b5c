package cli

import (
	"context"
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

func (a *app) grants() *cobra.Command {
	var uses bool
	cmd := &cobra.Command{
		Use: "grants NAME [flags]", Short: "List the grants of a sandbox", GroupID: groupAccess,
		Long: `List the grants of a sandbox, also those that are revoked, have expired, or have
no uses left: the secret, hosts and sites, what is left of the time and the
uses, and the placeholder.

--uses lists the requests that carried a secret, and those that a grant refused,
from the network log, which keeps the newest 4 to 8 MiB ("coppice net log").`,
		Example: `  coppice grants box
  coppice grants box --uses
  coppice grants box --json | jq -r '.grants[] | select(.state == "live").name'`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if uses {
				return a.listUses(cmd.Context(), args[0])
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Grants(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if list == nil {
				list = []wire.Grant{}
			}
			return a.print(wire.GrantsResult{Grants: list}, func(w io.Writer) error { return a.grantTable(w, list) })
		},
	}
	cmd.Flags().BoolVar(&uses, "uses", false, "list the requests that carried a secret")
	cmd.AddCommand(a.consent())
	return cmd
}

// grantTable writes a row for each grant.
func (a *app) grantTable(w io.Writer, list []wire.Grant) error {
	var t tty.Table
	if !a.quiet && len(list) > 0 {
		t.Row("NAME", "SECRET", "HOSTS", "SITES", "STATE", "LEFT", "USED", "LAST", "FORK", "PLACEHOLDER")
	}
	for _, g := range list {
		if a.quiet {
			t.Row(tty.Clean(g.Name))
			continue
		}
		last := "never"
		if g.LastUsed != nil {
			last = tty.Ago(*g.LastUsed, a.now())
		}
		t.Row(tty.Clean(g.Name), tty.Clean(g.Secret), oneLine(strings.Join(g.Hosts, ","), 40),
			oneLine(strings.Join(g.Sites, ","), 40), tty.Clean(g.State), grantLeft(g, a.now()),
			strconv.FormatInt(g.Used, 10), last, tty.Clean(g.Fork), orDash(g.Placeholder))
	}
	return t.Write(w)
}

// grantLeft returns what is left of the time and the uses of a grant.
func grantLeft(g wire.Grant, now time.Time) string {
	if g.State != wire.GrantLive {
		return "-"
	}
	var left []string
	if g.Until != nil {
		left = append(left, max(g.Until.Sub(now), 0).Round(time.Second).String())
	}
	if g.Uses > 0 {
		left = append(left, tty.Count(int(max(g.Uses-g.Used, 0)), "use"))
	}
	if left == nil {
		return "unlimited"
	}
	return strings.Join(left, ", ")
}

// listUses prints the events of the network log that name a grant.
func (a *app) listUses(ctx context.Context, name string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	res, err := c.Net(ctx, name, wire.NetRequest{Last: -1, Kinds: []string{wire.NetHTTP, wire.NetDeny}})
	if err != nil {
		return err
	}
	events := slices.DeleteFunc(append([]wire.NetEvent{}, res.Events...), func(ev wire.NetEvent) bool {
		return len(ev.Grants) == 0
	})
	return a.print(map[string]any{"events": events}, func(w io.Writer) error {
		for _, ev := range events {
			if _, err := fmt.Fprintln(w, a.netEvent(ev)); err != nil {
				return err
			}
		}
		return nil
	})
}
