package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/tty"
)

func (a *app) processInspect() *cobra.Command {
	var seq int64
	cmd := &cobra.Command{
		Use: "inspect NAME --record N", Short: "Show all records of a command",
		Long: `Show a record field by field, with the related records: for a command its start
and exit, limits hit, attached terminals, recorded output, denials, and whether
the operation was rolled back. Secrets are redacted before anything is stored,
and terminal control characters are escaped; --json has the stored output in
base64. "coppice ledger show NAME" prints the record numbers.`,
		Example: "  coppice process inspect box --record 12",
		Args:    between(1, 1, "the name of a sandbox"), ValidArgsFunction: a.names(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if seq < 1 {
				return &usageError{msg: "--record N is required",
					hint: "list records: coppice ledger " + tty.Clean(args[0])}
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
	cmd.Flags().Int64Var(&seq, "record", 0, "number `N` of the record")
	return cmd
}

// inspectedPrograms is the JSON output of inspect for a record of programs.
type inspectedPrograms struct {
	wire.LedgerInspection
	Programs []map[string]any `json:"programs"` // the programs that the record summarizes
}

// inspectPrograms shows a record of programs, and each program that it summarizes.
func (a *app) inspectPrograms(ctx context.Context, c *client.Client, name string, res wire.LedgerInspection) error {
	all := inspectedPrograms{LedgerInspection: res, Programs: []map[string]any{}}
	each := func(one map[string]any) error { all.Programs = append(all.Programs, one); return nil }
	if !a.json {
		if err := a.inspection(a.out, wire.LedgerInspection{Record: res.Record}); err != nil {
			return err
		}
		each = func(one map[string]any) error {
			_, err := fmt.Fprintln(a.out, programLine(one))
			return err
		}
	}
	if err := eachProgram(ctx, c, name, res.Record.Seq, each); err != nil || !a.json {
		return err
	}
	return a.print(all, nil)
}

// eachProgram calls fn for each program that a record summarizes.
func eachProgram(
	ctx context.Context, c *client.Client, name string, seq int64, fn func(map[string]any) error,
) error {
	for from := int64(0); ; {
		page, err := c.LedgerPrograms(ctx, name, seq, from)
		if err != nil {
			return err
		}
		for _, one := range page.Programs {
			if err := fn(one); err != nil {
				return err
			}
		}
		if from += int64(len(page.Programs)); len(page.Programs) == 0 || from >= page.Total {
			return nil
		}
	}
}

// programLine formats a program: start, PID, exit code if known, directory, and arguments.
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

// inspection writes a record, and then the records that belong to it.
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
		a.note("not all are shown; see: coppice ledger show %s --kind network,denial", tty.Clean(res.Record.Name))
	}
	if res.Undone {
		a.note("the operation of record %d was rolled back", res.Record.Seq)
	}
	return nil
}

// kept writes the captured output of a command, which may contain any bytes.
func (a *app) kept(w io.Writer, all []wire.LedgerOutput) error {
	for _, o := range all {
		head := tty.Clean(o.Stream)
		if o.Dropped > 0 {
			head += fmt.Sprintf(" (%d bytes not stored)", o.Dropped)
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

// fieldText formats the value of a field.
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
