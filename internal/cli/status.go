package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
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
					if m := st.Memory; m != nil {
						t.Row("memory", fmt.Sprintf("%s of %s in use, requests hold %s of %s", tty.Bytes(m.Live), tty.Bytes(m.Limit), tty.Bytes(m.Held), tty.Bytes(m.Requests)))
						if m.Waiting > 0 || m.Refused > 0 {
							t.Row("requests", fmt.Sprintf("%d waiting for memory, %d refused", m.Waiting, m.Refused))
						}
					}
					for _, l := range st.Listeners {
						if l.Auth != wire.AuthPeer { // the socket is the home's
							t.Row("listens", tty.Clean(l.URL)+", "+entry(l.Auth))
						}
					}
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
				for i, line := range works(sb.Repo) {
					label := ""
					if i == 0 {
						label = "works on"
					}
					t.Row(label, line)
				}
				state := tty.Clean(stateOf(sb))
				if sb.Procs > 0 {
					state += fmt.Sprintf(", processes: %d", sb.Procs)
				}
				t.Row("state", state)
				if sb.Expires != nil || sb.IdleStopMS > 0 {
					t.Row("lives", a.life(sb))
				}
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
				t.Row("policy", tty.Clean(sb.Policy))
				t.Row("self", tty.Clean(sb.Self))
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
					limits = append(limits, "disk "+tty.Bytes(l)+" ("+tty.Bytes(st.Disk.Limited)+" used)")
				}
				if l := sb.Limits.MilliCPUs; l > 0 {
					limits = append(limits, fmt.Sprintf("cpus %g", float64(l)/1000))
				}
				if l := sb.Limits.TimeMS; l > 0 {
					limits = append(limits, "time "+(time.Duration(l)*time.Millisecond).String())
				}
				if l := sb.Limits.Output; l > 0 {
					limits = append(limits, "output "+tty.Bytes(l))
				}
				if l := sb.Limits.Files; l > 0 {
					limits = append(limits, fmt.Sprintf("files %d", l))
				}
				if limits != nil {
					t.Row("limits", strings.Join(limits, ", "))
				}
				disk := tty.Bytes(st.Disk.Own) + " own, " + tty.Bytes(st.Disk.Shared) + " shared"
				if st.Disk.Live > 0 {
					disk += ", " + tty.Bytes(st.Disk.Live) + " not in a snapshot yet"
				}
				t.Row("disk", disk)
				if st.Run != nil {
					t.Row("command", a.running(st.Run))
				}
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

// works tells of the repository that a sandbox works on.
func works(r *wire.Repo) (out []string) {
	if r == nil {
		return nil
	}
	short := func(commit string) string { return tty.Clean(commit[:min(len(commit), 12)]) }
	at := "since " + short(r.Base)
	if r.From != "" {
		at += ", which was " + tty.Clean(r.From)
	}
	out = append(out, tty.Quote(r.Top), "branch "+tty.Clean(r.Branch)+", "+at)
	if r.Start != "" {
		out = append(out, "with what was not committed, as "+short(r.Start))
	}
	return out
}

// running says what the supervised command is and does.
func (a *app) running(r *wire.Run) string {
	line := tty.Clean(strings.Join(r.Cmd, " "))
	if r.Exit == nil {
		return line + ", since " + tty.Ago(r.Started, time.Now())
	}
	return fmt.Sprintf("%s, ended with exit code %d %s", line, r.Exit.Code, tty.Ago(*r.Ended, time.Now()))
}

func branches(n int) string {
	if n == 1 {
		return "1 branch"
	}
	return fmt.Sprintf("%d branches", n)
}

// entry says what a listener asks of those who come.
func entry(auth string) string {
	switch auth {
	case wire.AuthToken:
		return "with a token"
	case wire.AuthNone:
		return "open to every program on this machine"
	}
	return tty.Clean(auth)
}

// stateOf is the state of a sandbox for people.
func stateOf(sb wire.Sandbox) string {
	state := sb.State
	if sb.Paused {
		state = "paused"
	}
	if sb.Quarantine != nil {
		state += ", quarantined"
	}
	return state
}
