package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) status() *cobra.Command {
	return &cobra.Command{
		Use: "status [NAME]", Short: "Show the status of a sandbox or of the daemon", GroupID: groupBox,
		Long: `Show which protections are in force in a sandbox and why, its HEAD, and its disk
usage. Without a name, show the daemon.`,
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
				return a.print(st, func(w io.Writer) error { return a.printDaemon(w, &st) })
			}
			st, err := c.Status(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a.warn(st.Notices)
			return a.print(st, func(w io.Writer) error { return a.printStatus(w, &st) })
		},
	}
}

// printDaemon writes the status of the daemon for people.
func (a *app) printDaemon(w io.Writer, st *wire.DaemonStatus) error {
	var t tty.Table
	t.Row("daemon", fmt.Sprintf("pid %d, version %s, began %s",
		st.PID, tty.Clean(st.Version), tty.Ago(st.Started, a.now())))
	t.Row("home", tty.Quote(st.Home))
	t.Row("sandboxes", fmt.Sprintf("%d, of which %d live", st.Sandboxes, st.Live))
	if m := st.Memory; m != nil {
		t.Row("memory", fmt.Sprintf("%s of %s in use, requests hold %s of %s",
			tty.Bytes(m.Live), tty.Bytes(m.Limit), tty.Bytes(m.Held), tty.Bytes(m.Requests)))
		if m.Waiting > 0 || m.Refused > 0 {
			t.Row("requests", fmt.Sprintf("%d waiting for memory, %d refused", m.Waiting, m.Refused))
		}
	}
	for _, l := range st.Listeners {
		if l.Auth != wire.AuthPeer { // the socket in the home is implied
			t.Row("listens", tty.Clean(l.URL)+", "+entry(l.Auth))
		}
	}
	return t.Write(w)
}

// printStatus writes the status of a sandbox for people.
func (a *app) printStatus(w io.Writer, st *wire.StatusResult) error {
	var t tty.Table
	a.sandboxRows(&t, st)
	configRows(&t, st)
	ignored := make([]string, len(st.Sandbox.Ignored))
	for i, p := range st.Sandbox.Ignored {
		ignored[i] = tty.Quote(p)
	}
	titled(&t, "ignored", ignored)
	if l := limitsOf(st); l != "" {
		t.Row("limits", l)
	}
	disk := tty.Bytes(st.Disk.Own) + " own, " + tty.Bytes(st.Disk.Shared) + " shared"
	if st.Disk.Live > 0 {
		disk += ", " + tty.Bytes(st.Disk.Live) + " not captured yet"
	}
	t.Row("disk", disk)
	titled(&t, "grants", a.granted(st.Grants))
	if st.Run != nil {
		t.Row("command", a.running(st.Run))
	}
	enforcedRows(&t, st)
	return t.Write(w)
}

// granted describes grants.
func (a *app) granted(list []wire.Grant) (lines []string) {
	for _, g := range list {
		line := fmt.Sprintf("%s: %s for %s", tty.Clean(g.Name), tty.Clean(g.State), oneLine(strings.Join(g.Hosts, ","), 60))
		if g.State == wire.GrantLive {
			line += ", left: " + grantLeft(g, a.now())
		}
		if g.Until != nil {
			line += ", until " + g.Until.Local().Format(time.DateTime)
		}
		if g.Refused != nil {
			line += "; refused " + tty.Ago(*g.Refused, a.now()) + ": " + oneLine(g.RefusedWhy, 100)
		}
		lines = append(lines, line)
	}
	return lines
}

// sandboxRows adds the identity, the state and the HEAD of the sandbox.
func (a *app) sandboxRows(t *tty.Table, st *wire.StatusResult) {
	sb := st.Sandbox
	t.Row("name", tty.Clean(sb.Name))
	t.Row("id", tty.Clean(sb.ID))
	t.Row("made", tty.Ago(sb.Created, a.now())+", from "+tty.Clean(sb.From))
	var labels []string
	for _, text := range label.List(sb.Labels) {
		labels = append(labels, tty.Clean(text))
	}
	titled(t, "labels", labels)
	titled(t, "works on", works(sb.Repo))
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
}

// configRows adds the configuration, with the reason for a value that was chosen automatically.
func configRows(t *tty.Table, st *wire.StatusResult) {
	sb := st.Sandbox
	t.Row("driver", because(sb.Driver, st.DriverReason))
	t.Row("tier", because(sb.Tier, st.TierReason))
	t.Row("user", tty.Clean(sb.User))
	t.Row("net", tty.Clean(sb.Net))
	t.Row("policy", tty.Clean(sb.Policy))
	t.Row("self", tty.Clean(sb.Self))
	env := make([]string, len(sb.Env))
	for i, kv := range sb.Env {
		env[i] = tty.Clean(kv)
	}
	titled(t, "env", env)
}

// limitsOf formats the limits of a sandbox; "" if it has none.
func limitsOf(st *wire.StatusResult) string {
	var limits []string
	add := func(l int64, format string, args ...any) {
		if l > 0 {
			limits = append(limits, fmt.Sprintf(format, args...))
		}
	}
	of := st.Sandbox.Limits
	add(of.Memory, "memory %s", tty.Bytes(of.Memory))
	add(of.Pids, "pids %d", of.Pids)
	add(of.Disk, "disk %s (%s used)", tty.Bytes(of.Disk), tty.Bytes(st.Disk.Limited))
	add(of.MilliCPUs, "cpus %g", float64(of.MilliCPUs)/1000)
	add(of.TimeMS, "time %s", time.Duration(of.TimeMS)*time.Millisecond)
	add(of.Output, "output %s", tty.Bytes(of.Output))
	add(of.Files, "files %d", of.Files)
	return strings.Join(limits, ", ")
}

// enforcedRows adds the enforced protections, and the omitted host paths.
func enforcedRows(t *tty.Table, st *wire.StatusResult) {
	if len(st.Enforced) == 0 {
		t.Row("enforced", "(never started)")
	}
	var enforced []string
	for _, e := range st.Enforced {
		line := fmt.Sprintf("%-4s %s", tty.Clean(e.State), tty.Clean(e.Name))
		if e.Detail != "" {
			line += ": " + tty.Clean(e.Detail)
		}
		enforced = append(enforced, line)
	}
	titled(t, "enforced", enforced)
	var leftOut []string
	for _, l := range st.LeftOut {
		leftOut = append(leftOut, tty.Quote(l.Path)+": "+tty.Clean(l.Why))
	}
	titled(t, "left out", leftOut)
}

// titled adds rows, of which the first has the title.
func titled(t *tty.Table, title string, lines []string) {
	for i, line := range lines {
		if i > 0 {
			title = ""
		}
		t.Row(title, line)
	}
}

// because formats a value with its reason, if any.
func because(v, why string) string {
	if why == "" {
		return tty.Clean(v)
	}
	return tty.Clean(v) + " (" + tty.Clean(why) + ")"
}

// works describes the repository of a sandbox.
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
		out = append(out, "with uncommitted changes, as "+short(r.Start))
	}
	return out
}

// running describes the supervised command.
func (a *app) running(r *wire.Run) string {
	line := tty.Clean(strings.Join(r.Cmd, " "))
	if r.Exit == nil {
		return line + ", since " + tty.Ago(r.Started, time.Now())
	}
	return fmt.Sprintf("%s, exited with code %d %s", line, r.Exit.Code, tty.Ago(*r.Ended, time.Now()))
}

func branches(n int) string {
	if n == 1 {
		return "1 branch"
	}
	return fmt.Sprintf("%d branches", n)
}

// entry describes the authentication of a listener.
func entry(auth string) string {
	switch auth {
	case wire.AuthToken:
		return "with a token"
	case wire.AuthNone:
		return "open to all programs on this machine"
	}
	return tty.Clean(auth)
}

// stateOf formats the state of a sandbox.
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
