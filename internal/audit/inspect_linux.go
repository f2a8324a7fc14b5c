//go:build linux

package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// InspectRecord returns a record with related ones: those of the same command, and those that say that it did not
// happen.
func (rd *Reader) InspectRecord(ctx context.Context, name string, seq int64) (res wire.LedgerInspection, err error) {
	id, last, err := rd.Whose(ctx, name)
	if err != nil {
		return res, err
	}
	if seq < 1 || seq > last {
		return res, fault.New(fault.NotFound, "record %d of %s not found", seq, name).
			WithHint("it has %d records: coppice ledger show %s", last, name)
	}
	var one *format.Record
	for r, err := range rd.ledger.Read(ctx, id, ledger.Filter{From: seq, Limit: 1}) {
		if err != nil {
			return res, err
		}
		one = r
	}
	if one == nil {
		return res, fault.New(fault.Corrupt, "record %d of %s is missing", seq, name).
			WithHint("find the damage: coppice system verify %s", name)
	}
	if res.Record, err = recordOnWire(one); err != nil {
		return res, err
	}
	res.With = []wire.LedgerRecord{}
	exec, from := execOf(one), seq
	sight := spell{exec: exec}
	if exec != "" && one.Kind() != format.KindExec {
		from = 1
	}
	for r, err := range rd.ledger.Read(ctx, id, ledger.Filter{From: from}) {
		if err != nil || ctx.Err() != nil {
			return res, cmp.Or(err, context.Cause(ctx))
		}
		sight.hear(r)
		undone, is := r.Body.(*format.Undone)
		if is && undone.Seq == seq {
			res.Undone = true
		} else if r.Seq == seq || exec == "" || execOf(r) != exec {
			continue
		}
		w, err := recordOnWire(r)
		if err != nil {
			return res, err
		}
		if res.With = append(res.With, w); len(res.With) == maxRelated {
			break
		}
	}
	for _, r := range sight.between {
		w, err := recordOnWire(r)
		if err != nil {
			return res, err
		}
		res.Between = append(res.Between, w)
	}
	res.More = sight.more
	if sight.exit != nil {
		res.Output = rd.outputOf(id, sight.exit)
	}
	return res, nil
}

// execOf returns the command that a record belongs to; "" if none.
func execOf(r *format.Record) string {
	switch b := r.Body.(type) {
	case *format.Exec:
		return b.Exec
	case *format.Exit:
		return b.Exec
	case *format.Limit:
		return b.Exec
	case *format.Session:
		return b.Exec
	case *format.Denial:
		return b.Exec
	case *format.Program:
		return b.Exec
	}
	return ""
}

// maxBetween is how many records from the time of a command are shown with it.
const maxBetween = 1000

// spell collects the records of a sandbox from the time during which a command ran.
type spell struct {
	exec    string // the command; "": none
	begun   bool
	exit    *format.Exit // nil: not found yet
	between []*format.Record
	more    bool
}

// hear adds the next record.
func (s *spell) hear(r *format.Record) {
	if s.exec == "" {
		return
	}
	switch b := r.Body.(type) {
	case *format.Exec:
		s.begun = s.begun || b.Exec == s.exec
	case *format.Exit:
		if b.Exec == s.exec {
			s.exit = b
		}
	case *format.Network, *format.Denial:
		switch {
		case !s.begun || s.exit != nil:
		case len(s.between) == maxBetween:
			s.more = true
		default:
			s.between = append(s.between, r)
		}
	}
}

// outputOf reads the stored output of a command.
func (rd *Reader) outputOf(id format.Sandbox, exit *format.Exit) (out []wire.LedgerOutput) {
	for _, o := range exit.Output {
		w := wire.LedgerOutput{Stream: o.Stream, Blob: o.Blob, Dropped: o.Dropped}
		if o.Blob != "" {
			var err error
			if w.Data, err = rd.ledger.ReadBlob(id, o.Blob); err != nil {
				w.Lost = err.Error()
			}
		}
		out = append(out, w)
	}
	return out
}

// maxListedPrograms is how many programs of a list are returned at a time.
const maxListedPrograms = 1000

// LedgerPrograms returns the programs that a record summarizes, from index from on.
func (rd *Reader) LedgerPrograms(
	ctx context.Context, name string, seq, from int64,
) (res wire.LedgerPrograms, err error) {
	id, _, err := rd.Whose(ctx, name)
	if err != nil {
		return res, err
	}
	var body *format.Program
	for r, err := range rd.ledger.Read(ctx, id, ledger.Filter{From: seq, Limit: 1}) {
		if err != nil {
			return res, err
		}
		if r.Seq == seq {
			body, _ = r.Body.(*format.Program)
		}
	}
	if body == nil || from < 0 {
		return res, fault.New(fault.NotFound, "record %d of %s has no programs", seq, name).
			WithHint("list those that have: coppice ledger show %s --kind program", name)
	}
	list, err := json.Marshal(body)
	if body.List != "" {
		list, err = rd.ledger.ReadBlob(id, body.List)
	}
	if err != nil {
		return res, err
	}
	res.Programs = []map[string]any{}
	for line := range bytes.Lines(list) {
		var one format.Program
		if err := json.Unmarshal(line, &one); err != nil {
			return res, fault.New(fault.Corrupt, "the list of record %d of %s is damaged", seq, name).Because(err)
		}
		if body.Path != OtherPrograms && (one.Path != body.Path || one.Exec != body.Exec) {
			continue
		}
		if res.Total++; res.Total <= from || len(res.Programs) == maxListedPrograms {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			return res, err
		}
		res.Programs = append(res.Programs, fields)
	}
	return res, nil
}
