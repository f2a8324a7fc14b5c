package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// ledgerPage is the maximum number of records in one request.
const ledgerPage = 1000

func (a *app) ledgerShow() *cobra.Command {
	var (
		follows bool
		since   string
		kinds   []string
		most    int
	)
	cmd := &cobra.Command{
		Use: "show NAME [flags]", Short: "Show and prove the audit log of a sandbox",
		Long: `Show the audit log of a sandbox, newest record last: commands, changes, network
access and denials, each with its observer. Records are chained and signed in
this host's log: "coppice system verify" checks them, and "coppice ledger
export" writes them with proofs for third parties. Name a removed sandbox by its
ID; its records remain. "host" shows the records that belong to no sandbox.

--json prints one object with the list of records. --follow shows new records
until Ctrl-C or the removal of the sandbox, with --json one object per line.
docs/LEDGER.md describes each kind.`,
		Example: `  coppice ledger show box
  coppice ledger show box --kind exec,exit --since 1h
  coppice ledger show box -n -1 --json | jq '.records[].body'`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < -1 || most == 0 {
				return &usageError{
					msg:  fmt.Sprintf("invalid --max-count %d: must not be less than -1", most),
					hint: "use -1 for all",
				}
			}
			req := wire.LedgerRequest{Kinds: kinds}
			if since != "" {
				at, err := a.moment("--since", since)
				if err != nil {
					return err
				}
				req.Since = at
			}
			given := cmd.Flags().Changed("max-count")
			switch {
			case follows && !given:
				most = recent
			case since != "" && !given:
				most = -1
			}
			if follows {
				return a.followLedger(cmd.Context(), args[0], req, most)
			}
			return a.listLedger(cmd.Context(), args[0], req, most)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&follows, "follow", false, "follow new records")
	f.StringVar(&since, "since", "", "show records since `TIME`: 10m, or 2026-01-02T15:04:05Z")
	f.StringSliceVar(&kinds, "kind", nil, "show only `KINDS`, comma-separated: exec, snapshot, network, ...")
	f.IntVarP(&most, "max-count", "n", 100,
		"show the newest `N` records (default: 10 with --follow, all with --since); -1 is all")
	return cmd
}

// moment parses a time, or a duration before now.
func (a *app) moment(flag, text string) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return a.now().Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, &usageError{msg: fmt.Sprintf("invalid %s %q: not a time", flag, text),
			hint: "use 10m, 2h, or a time as in 2026-01-02T15:04:05Z"}
	}
	return at, nil
}

func (a *app) listLedger(ctx context.Context, name string, req wire.LedgerRequest, most int) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	list := recordList{a: a}
	if most > 0 && most <= ledgerPage {
		req.Last = most
		res, err := c.Ledger(ctx, name, req)
		if err != nil {
			return err
		}
		return errors.Join(list.add(res.Records), list.end())
	}
	req.Limit = ledgerPage
	var newest []wire.LedgerRecord
	for {
		res, err := c.Ledger(ctx, name, req)
		if err != nil {
			return err
		}
		if most < 0 {
			err = list.add(res.Records)
		} else if newest = append(newest, res.Records...); len(newest) > most {
			newest = slices.Clone(newest[len(newest)-most:])
		}
		if err != nil || !res.More {
			return errors.Join(err, list.add(newest), list.end())
		}
		req.From = res.Records[len(res.Records)-1].Seq + 1
	}
}

// recordList writes records one a line, or with --json as one object, {"records":[...]}. It keeps no records in
// memory. The output is complete after end.
type recordList struct {
	a *app
	n int // number of written records
}

func (l *recordList) add(records []wire.LedgerRecord) error {
	for _, r := range records {
		if err := l.open(); err != nil {
			return err
		}
		if err := l.a.printRecord(r); err != nil {
			return err
		}
		l.n++
	}
	return nil
}

// open writes the separator before a record in JSON.
func (l *recordList) open() error {
	if !l.a.json {
		return nil
	}
	before := ","
	if l.n == 0 {
		before = `{"records":[` + "\n"
	}
	_, err := io.WriteString(l.a.out, before)
	return err
}

func (l *recordList) end() error {
	if !l.a.json {
		return nil
	}
	after := "]}\n"
	if l.n == 0 {
		after = `{"records":[]}` + "\n"
	}
	_, err := io.WriteString(l.a.out, after)
	return err
}

// printRecord writes one record in a line.
func (a *app) printRecord(r wire.LedgerRecord) error {
	return a.print(r, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, a.recordLine(r))
		return err
	})
}

// recordLine formats a record.
func (a *app) recordLine(r wire.LedgerRecord) string {
	p := a.palette()
	colour := p.Bold
	switch r.Kind {
	case "denial", "limit", "undone", "lost":
		colour = p.Red
	case "exit", "stop", "session":
		colour = p.Dim
	}
	by := ""
	if r.Observer == "sandbox" {
		by = p.Yellow("  (claimed by the sandbox)")
	}
	return strings.TrimRight(
		fmt.Sprintf("%s  %s  %s  %s%s", p.Dim(fmt.Sprintf("%5d", r.Seq)),
			p.Dim(r.Time.Local().Format("2006-01-02 15:04:05.000")),
			colour(fmt.Sprintf("%-10s", tty.Clean(r.Kind))), tty.Clean(r.Text), by), " ")
}

func (a *app) followLedger(ctx context.Context, name string, req wire.LedgerRequest, most int) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	if req.Since.IsZero() && most > 0 {
		if req.From, err = newest(ctx, c, name, req, most); err != nil {
			return err
		}
	}
	err = c.LedgerEvents(ctx, name, req, func(r wire.LedgerRecord) error {
		if err := a.printRecord(r); err != nil {
			return err
		}
		return a.out.Flush()
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

// newest returns the sequence number of the first of the newest most records.
func newest(ctx context.Context, c *client.Client, name string, req wire.LedgerRequest, most int) (int64, error) {
	req.Last = min(most, ledgerPage)
	res, err := c.Ledger(ctx, name, req)
	if err != nil || len(res.Records) == 0 {
		return 0, err
	}
	return res.Records[0].Seq, nil
}
