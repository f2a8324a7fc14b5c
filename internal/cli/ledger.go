package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

// ledgerPage is how many records are asked for at a time.
const ledgerPage = 1000

func (a *app) ledger() *cobra.Command {
	var (
		follows bool
		since   string
		kinds   []string
		most    int
	)
	cmd := &cobra.Command{
		Use: "ledger NAME [flags]", Short: "Show what is recorded of a sandbox, and prove it", GroupID: groupHistory,
		Long: `Show what is recorded of a sandbox, the newest last: what was run, changed, reached and
denied, each with who observed it. Records are chained, and in a signed log of this host:
coppice system verify checks them, and coppice ledger export gives them to somebody who trusts
neither the sandbox nor you. NAME is the id where the sandbox was removed: its records
stay. "host" has what belongs to no sandbox.

With --json the records are a list in one object. With --follow it goes on until Ctrl-C or
the sandbox is removed, and --json writes one object a line. docs/LEDGER.md says what each kind tells.`,
		Example: `  coppice ledger show box
  coppice ledger show box --kind exec,exit --since 1h
  coppice ledger show box -n -1 --json | jq -r '.records[] | select(.kind == "exec").body.args'
  coppice ledger export box -o box.tar
  coppice ledger checkpoint > log.checkpoint`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < -1 || most == 0 {
				return &usageError{msg: fmt.Sprintf("--max-count %d: a number of records is wanted", most), hint: "-1 is all"}
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
	f.BoolVar(&follows, "follow", false, "go on with what is recorded from now on")
	f.StringVar(&since, "since", "", "none that is older than `TIME`: 10m, or 2026-01-02T15:04:05Z")
	f.StringSliceVar(&kinds, "kind", nil, "of these `KINDS` alone, with commas between: exec, snapshot, network, ...")
	f.IntVarP(&most, "max-count", "n", 100,
		"the newest `N`, with --follow 10 and with --since all unless it is given; -1 is all")
	cmd.AddCommand(a.ledgerExport(), a.ledgerArchive(), a.ledgerCheckpoint(), a.ledgerCosign(), a.ledgerWitness(),
		a.ledgerKeys(), a.ledgerRotateKey())
	for _, c := range cmd.Commands() {
		c.Flags().SortFlags = false
		c.DisableFlagsInUseLine = true
		c.Annotations = map[string]string{exits: usual}
	}
	return cmd
}

// moment reads a time, or how long ago it was.
func (a *app) moment(flag, text string) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return a.now().Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, &usageError{msg: fmt.Sprintf("%s %q is no time", flag, text),
			hint: "give 10m, 2h, or a time as in 2026-01-02T15:04:05Z"}
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

// recordList writes records a line each; with --json as one object, {"records":[...]}, which may
// hold more of them than fit into memory. It is complete after end.
type recordList struct {
	a *app
	n int // records that were written
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

// open writes what is before a record in JSON.
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

// recordLine is the line of a record.
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
		by = p.Yellow("  (the sandbox's own word)")
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

// newest gives the number of the first of the newest so many records.
func newest(ctx context.Context, c *client.Client, name string, req wire.LedgerRequest, most int) (int64, error) {
	req.Last = min(most, ledgerPage)
	res, err := c.Ledger(ctx, name, req)
	if err != nil || len(res.Records) == 0 {
		return 0, err
	}
	return res.Records[0].Seq, nil
}

func (a *app) ledgerExport() *cobra.Command {
	var to string
	var since []string
	cmd := &cobra.Command{
		Use: "export NAME [flags]", Short: "Write all records of a sandbox, with what proves them",
		Long: `Write a bundle: all records of a sandbox, with the proof that the signed log of this
host has them and no others, as a tar archive. Who has it verifies it with what
docs/LEDGER.md says, or with coppice system verify --bundle, and needs nothing else of this host.
Who holds a checkpoint of before wants the proof that the log grew from it: give it with --since.`,
		Example: `  coppice ledger export box -o box.tar
  coppice ledger export box -o box.tar --since log.checkpoint`,
		Args: between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			old := make([]int64, len(since))
			for i, name := range since {
				text, err := a.noteFile(name)
				if err != nil {
					return err
				}
				if old[i], err = sizeOf(name, text); err != nil {
					return err
				}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if to == "" || to == "-" {
				if tty.IsTerminal(a.stdout) {
					return usagef("a bundle is not for a terminal: give -o FILE, or pipe it")
				}
				return c.ExportLedger(cmd.Context(), args[0], a.out, old...)
			}
			f, err := os.CreateTemp(filepath.Dir(to), ".bundle-*")
			if err != nil {
				return err
			}
			defer func() {
				if err != nil {
					err = errors.Join(err, f.Close(), os.Remove(f.Name()))
				}
			}()
			if err := c.ExportLedger(cmd.Context(), args[0], f, old...); err != nil {
				return err
			}
			if err := errors.Join(f.Chmod(0o600), f.Sync()); err != nil {
				return err
			}
			if err := os.Rename(f.Name(), to); err != nil {
				return err
			}
			return f.Close()
		},
	}
	cmd.Flags().StringArrayVar(&since, "since", nil,
		"prove that the log grew from the checkpoint in `FILE`; may be given again")
	cmd.Flags().StringVarP(&to, "output", "o", "", "write to `FILE`, and not to standard output")
	return cmd
}

func (a *app) inspect() *cobra.Command {
	var seq int64
	cmd := &cobra.Command{
		Use: "inspect NAME --record N", Short: "Show all that is recorded of a command", GroupID: groupHistory,
		Long: `Show a record field by field, with those that belong to it: of a command its beginning
and its end, the limits that it came to, who was at its terminal, what was kept of its
output, what it was denied; and whether it is told that it did not come about. Secrets
were taken out before any of it was kept, and what a terminal would act on is shown as
what it is; --json has the output in base64, as it was kept. coppice ledger show NAME has the
numbers.`,
		Example: "  coppice process inspect box --record 12",
		Args:    between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if seq < 1 {
				return &usageError{msg: "--record N is wanted: the number of a record",
					hint: "see: coppice ledger " + tty.Clean(args[0])}
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			res, err := c.InspectRecord(cmd.Context(), args[0], seq)
			if err != nil {
				return err
			}
			if res.Record.Kind != "program" {
				return a.print(res, func(w io.Writer) error { return a.inspection(w, res) })
			}
			return a.inspectPrograms(cmd.Context(), c, args[0], res)
		},
	}
	cmd.Flags().Int64Var(&seq, "record", 0, "the record numbered `N`")
	return cmd
}

// inspectPrograms shows a record of programs, and each that it stands for.
func (a *app) inspectPrograms(ctx context.Context, c *client.Client, name string, res wire.LedgerInspection) error {
	if err := a.print(res,
		func(w io.Writer) error { return a.inspection(w, wire.LedgerInspection{Record: res.Record}) }); err != nil {
		return err
	}
	for from := int64(0); ; {
		page, err := c.LedgerPrograms(ctx, name, res.Record.Seq, from)
		if err != nil {
			return err
		}
		for _, one := range page.Programs {
			if err := a.print(one, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, programLine(one))
				return err
			}); err != nil {
				return err
			}
		}
		if from += int64(len(page.Programs)); len(page.Programs) == 0 || from >= page.Total {
			return nil
		}
	}
}

// programLine shows a program: when it began, its pid, its exit code if it is known, where it
// ran, and its arguments.
func programLine(one map[string]any) string {
	field := func(key, none string) string {
		if v, ok := one[key]; ok {
			return tty.Clean(fieldText(v))
		}
		return none
	}
	none := "-"
	if one["duration_ns"] != nil {
		none = "0"
	}
	return fmt.Sprintf("%s  %6s  %3s  %s  %s", field("started", "-"), field("pid", "-"), field("code", none),
		field("dir", "-"), field("args", field("path", "-")))
}

// inspection writes a record, and then those that belong to it.
func (a *app) inspection(w io.Writer, res wire.LedgerInspection) error {
	for i, r := range append([]wire.LedgerRecord{res.Record}, res.With...) {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		var t tty.Table
		p := a.palette()
		t.Row(p.Bold(fmt.Sprintf("record %d", r.Seq)), p.Bold(tty.Clean(r.Kind)))
		t.Row("time", r.Time.Format(time.RFC3339Nano))
		t.Row("observer", tty.Clean(r.Observer))
		t.Row("policy", orNone(r.Policy))
		t.Row("tier", orNone(r.Tier))
		for _, key := range slices.Sorted(maps.Keys(r.Body)) {
			t.Row(tty.Clean(key), tty.Clean(fieldText(r.Body[key])))
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	if err := a.kept(w, res.Output); err != nil {
		return err
	}
	if len(res.Between) > 0 {
		if _, err := fmt.Fprintln(w, "\n"+a.palette().Bold("while it ran")); err != nil {
			return err
		}
	}
	for _, r := range res.Between {
		if _, err := fmt.Fprintln(w, a.recordLine(r)); err != nil {
			return err
		}
	}
	if res.More {
		a.note("there are more of these: coppice ledger show %s --kind network,denial", tty.Clean(res.Record.Name))
	}
	if res.Undone {
		a.note("what record %d tells did not come about", res.Record.Seq)
	}
	return nil
}

// kept writes what was kept of a command's output, which may be any bytes.
func (a *app) kept(w io.Writer, all []wire.LedgerOutput) error {
	for _, o := range all {
		head := tty.Clean(o.Stream)
		if o.Dropped > 0 {
			head += fmt.Sprintf(" (%d bytes are not kept)", o.Dropped)
		}
		if o.Lost != "" {
			head += ": " + tty.Clean(o.Lost)
		}
		if _, err := fmt.Fprintln(w, "\n"+a.palette().Bold(head)); err != nil {
			return err
		}
		if len(o.Data) == 0 {
			continue
		}
		if _, err := tty.Cleaner(w).Write(append(bytes.TrimSuffix(o.Data, []byte("\n")), '\n')); err != nil {
			return err
		}
	}
	return nil
}

// fieldText shows the value of a field.
func fieldText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, fieldText(one))
		}
		return strings.Join(all, " ")
	case map[string]any:
		var all []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, key+"="+fieldText(v[key]))
		}
		return strings.Join(all, " ")
	}
	return fmt.Sprint(v)
}
