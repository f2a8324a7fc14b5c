package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status [NAME]", Short: "Show a sandbox, or the daemon", GroupID: groupBox,
		Long: `Show what is in force in a sandbox and why, where its head is and what disk it
takes. Without a name, show the daemon.`,
		Example:           "  coppice status box",
		Args:              between(0, 1, "one name"),
		ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				st, err := c.Daemon(cmd.Context())
				if err != nil {
					return err
				}
				return a.print(st, func(w io.Writer) error {
					var t tty.Table
					t.Row("daemon", fmt.Sprintf("pid %d, version %s, began %s", st.PID, tty.Clean(st.Version), tty.Ago(st.Started, a.now())))
					t.Row("home", tty.Quote(st.Home))
					t.Row("sandboxes", fmt.Sprintf("%d, of which %d live", st.Sandboxes, st.Live))
					return t.Write(w)
				})
			}
			st, err := c.Status(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a.warn(st.Notices)
			return a.print(st, func(w io.Writer) error {
				sb := st.Sandbox
				because := func(v, why string) string {
					if why == "" {
						return tty.Clean(v)
					}
					return tty.Clean(v) + " (" + tty.Clean(why) + ")"
				}
				var t tty.Table
				t.Row("name", tty.Clean(sb.Name))
				t.Row("id", tty.Clean(sb.ID))
				t.Row("made", tty.Ago(sb.Created, a.now())+", from "+tty.Clean(sb.From))
				state := tty.Clean(sb.State)
				if sb.Procs > 0 {
					state += fmt.Sprintf(", processes: %d", sb.Procs)
				}
				t.Row("state", state)
				head := tty.Clean(sb.Head)
				if st.Dirty {
					head += ", changed since"
				}
				t.Row("head", head)
				t.Row("history", tty.Count(st.Snapshots, "snapshot")+" on "+branches(st.Branches))
				t.Row("driver", because(sb.Driver, st.DriverReason))
				t.Row("tier", because(sb.Tier, st.TierReason))
				t.Row("user", tty.Clean(sb.User))
				t.Row("net", tty.Clean(sb.Net))
				for i, kv := range sb.Env {
					label := ""
					if i == 0 {
						label = "env"
					}
					t.Row(label, tty.Clean(kv))
				}
				var limits []string
				if l := sb.Limits.Memory; l > 0 {
					limits = append(limits, "memory "+tty.Bytes(l))
				}
				if l := sb.Limits.Pids; l > 0 {
					limits = append(limits, fmt.Sprintf("pids %d", l))
				}
				if l := sb.Limits.Disk; l > 0 {
					limits = append(limits, "disk "+tty.Bytes(l))
				}
				if limits != nil {
					t.Row("limits", strings.Join(limits, ", "))
				}
				disk := tty.Bytes(st.Disk.Own) + " own, " + tty.Bytes(st.Disk.Shared) + " shared"
				if st.Disk.Live > 0 {
					disk += ", " + tty.Bytes(st.Disk.Live) + " not in a snapshot yet"
				}
				t.Row("disk", disk)
				if len(st.Enforced) == 0 {
					t.Row("enforced", "(it was never started)")
				}
				for i, e := range st.Enforced {
					label := ""
					if i == 0 {
						label = "enforced"
					}
					line := fmt.Sprintf("%-4s %s", tty.Clean(e.State), tty.Clean(e.Name))
					if e.Detail != "" {
						line += ": " + tty.Clean(e.Detail)
					}
					t.Row(label, line)
				}
				for i, l := range st.LeftOut {
					label := ""
					if i == 0 {
						label = "left out"
					}
					t.Row(label, tty.Quote(l.Path)+": "+tty.Clean(l.Why))
				}
				return t.Write(w)
			})
		},
	}
}

func branches(n int) string {
	if n == 1 {
		return "1 branch"
	}
	return fmt.Sprintf("%d branches", n)
}
