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

// maxCompared is how many sandboxes are compared at a time.
const maxCompared = 64

func (a *app) compare() *cobra.Command {
	var (
		test    string
		timeout time.Duration
		diff    bool
	)
	cmd := &cobra.Command{
		Use: "compare NAME... [flags]", Short: "Put what is recorded of sandboxes side by side", GroupID: groupHistory,
		Long: `Put attempts side by side: how the last command of each sandbox ended, how long its
commands took, how many paths changed, what it reached and was refused, which limits it came to,
how many programs it started, and how risky all of that was, from 0 to 100. docs/LEDGER.md has
the formula. A sandbox that was removed is named by its id: its records stay.

Of sandboxes that work on a git repository it is told as well what they did there: commits, files
and lines, how many are marked as what a host would run or trust, and which two changed the same
files. --diff shows the patches after that. With --test a shell command is run in a fork of each,
which is removed then, and it is shown how it ended.`,
		Example: `  coppice fork box one two
  coppice exec one -- make test; coppice exec two -- make test
  coppice ledger compare one two
  coppice ledger compare one two --test 'make test' --diff`,
		Args: between(1, maxCompared, "the names of sandboxes"), ValidArgsFunction: a.names(maxCompared),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			switch {
			case diff && a.json:
				return usagef("--diff does not go with --json")
			case timeout < 0 || timeout > 0 && timeout < time.Millisecond:
				return usagef("--timeout %s: a time of a millisecond or more is wanted", timeout)
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			all, err := attempts(ctx, c, args)
			if err == nil && test != "" {
				err = try(ctx, c, all, wire.TrialRequest{Cmd: test, TimeoutMS: timeout.Milliseconds()})
			}
			if err != nil {
				return err
			}
			if err := a.print(map[string]any{"sandboxes": all},
				func(w io.Writer) error { return a.sideBySide(w, all) }); err != nil || !diff {
				return err
			}
			return a.diffs(ctx, c, all)
		},
	}
	f := cmd.Flags()
	f.StringVar(&test, "test", "", "run `CMD` in a fork of each")
	f.DurationVar(&timeout, "timeout", 0, "`TIME` for each test, as in 90s or 5m")
	f.BoolVar(&diff, "diff", false, "show the patch of each")
	return cmd
}

// sideBySide writes a line for each thing that is compared, and a column for each sandbox.
func (a *app) sideBySide(w io.Writer, all []attempt) error {
	p := a.palette()
	var t tty.Table
	row := func(what string, cell func(*wire.LedgerSummary) string) {
		line := []string{what}
		for i := range all {
			line = append(line, tty.Clean(cell(&all[i].LedgerSummary)))
		}
		t.Row(line...)
	}
	head := []string{""}
	for i := range all {
		head = append(head, p.Bold(tty.Clean(nameOf(&all[i].LedgerSummary))))
	}
	t.Row(head...)
	row("outcome", func(s *wire.LedgerSummary) string { return orNone(s.Outcome) })
	row("commands", func(s *wire.LedgerSummary) string { return of(s.Commands, s.Failed, "failed") })
	row("time", func(s *wire.LedgerSummary) string {
		return time.Duration(s.DurationNS).Round(time.Millisecond).String()
	})
	row("changed paths", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Changes) })
	row("rolled back", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Rollbacks) })
	row("refused", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Denied) })
	row("network", func(s *wire.LedgerSummary) string { return of(s.NetAllowed, s.NetDenied, "refused") })
	row("hosts", func(s *wire.LedgerSummary) string { return hosts(s) })
	row("sent", func(s *wire.LedgerSummary) string { return tty.Bytes(s.BytesOut) })
	row("limits hit", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Limits) })
	row("programs", func(s *wire.LedgerSummary) string { return of(s.Programs, s.ProgramsFailed, "failed") })
	row("risk", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Risk) })
	row("", func(s *wire.LedgerSummary) string { return risks(s) })
	gitRows(&t, all)
	if err := t.Write(w); err != nil {
		return err
	}
	return shared(w, all)
}

// nameOf is what a sandbox is called, or its id where it is gone.
func nameOf(s *wire.LedgerSummary) string {
	if s.Removed || s.Name == "" {
		return s.Sandbox
	}
	return s.Name
}

// of is how many, and how many of them are of a kind.
func of(n, some int64, kind string) string {
	if some == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d, %d %s", n, some, kind)
}

// hosts is how many were reached, and the first of them.
func hosts(s *wire.LedgerSummary) string {
	if len(s.HostNames) == 0 {
		return fmt.Sprint(s.Hosts)
	}
	more := ""
	if s.Hosts > 1 {
		more = ", ..."
	}
	return fmt.Sprintf("%d: %s%s", s.Hosts, s.HostNames[0], more)
}

// risks tells what a score is the sum of.
func risks(s *wire.LedgerSummary) string {
	var parts []string
	for _, r := range s.Risks {
		parts = append(parts, fmt.Sprintf("%s %d", r.What, r.Points))
	}
	return strings.Join(parts, "; ")
}
