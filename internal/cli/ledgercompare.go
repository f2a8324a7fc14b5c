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

// maxCompared is the maximum number of compared sandboxes.
const maxCompared = 64

func (a *app) ledgerCompare() *cobra.Command {
	var (
		test    string
		timeout time.Duration
		diff    bool
	)
	cmd := &cobra.Command{
		Use: "compare NAME... [flags]", Short: "Compare and rank several sandboxes by their audit logs",
		Long: `Compare sandboxes, best first: a test that passes counts before the success of
the last command, this before a lower risk, and this before a smaller change.

Show the exit code of the last command, the run time of all commands, changed
paths, network access, denials, limits hit, programs started, and a risk score
from 0 to 100 (docs/LEDGER.md has the formula). Name a removed sandbox by its
ID; its records remain.

For sandboxes that work on a git repository, also show commits, files and lines,
the number of marked files, and which two sandboxes changed the same files.
--diff appends the patches. --test runs a shell command in a temporary fork of
each sandbox and shows the result.`,
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
				return usagef("--diff and --json are mutually exclusive")
			case timeout < 0 || timeout > 0 && timeout < time.Millisecond:
				return usagef("invalid --timeout %s: must be at least 1ms", timeout)
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
			rank(all)
			if err := a.print(map[string]any{"sandboxes": all},
				func(w io.Writer) error { return a.sideBySide(w, all) }); err != nil || !diff {
				return err
			}
			return a.diffs(ctx, c, all)
		},
	}
	f := cmd.Flags()
	f.StringVar(&test, "test", "", "run `CMD` in a fork of each sandbox")
	f.DurationVar(&timeout, "timeout", 0, "timeout of each test, `TIME` as in 90s or 5m")
	f.BoolVar(&diff, "diff", false, "show the patch of each sandbox")
	return cmd
}

// sideBySide writes a row for each compared value, with a column for each sandbox.
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
	ranks := []string{"rank"}
	for i := range all {
		ranks = append(ranks, fmt.Sprint(all[i].Rank))
	}
	t.Row(ranks...)
	row("outcome", func(s *wire.LedgerSummary) string { return orNone(s.Outcome) })
	row("commands", func(s *wire.LedgerSummary) string { return of(s.Commands, s.Failed, "failed") })
	row("time", func(s *wire.LedgerSummary) string {
		return time.Duration(s.DurationNS).Round(time.Millisecond).String()
	})
	row("changed paths", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Changes) })
	row("rolled back", func(s *wire.LedgerSummary) string { return fmt.Sprint(s.Rollbacks) })
	row("refused", func(s *wire.LedgerSummary) string { return of(s.Denied, s.FilesDenied, "files") })
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

// nameOf returns the name of a sandbox, or its ID if it was removed.
func nameOf(s *wire.LedgerSummary) string {
	if s.Removed || s.Name == "" {
		return s.Sandbox
	}
	return s.Name
}

// of formats a number, and how many of it are of a kind.
func of(n, some int64, kind string) string {
	if some == 0 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d, %d %s", n, some, kind)
}

// hosts formats the number of reached hosts, and the first of them.
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

// risks formats the parts of a risk score.
func risks(s *wire.LedgerSummary) string {
	var parts []string
	for _, r := range s.Risks {
		parts = append(parts, fmt.Sprintf("%s %d", r.What, r.Points))
	}
	return strings.Join(parts, "; ")
}
