//go:build linux

package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// maxLedger is how many records are given at a time, and maxRelated how many that belong to
// one.
const (
	maxLedger  = 1000
	maxRelated = 10_000
)

// ledgerOf finds whose records are meant: of a sandbox, by name or id; of one that was
// removed, by id; or of the host.
func (e *Engine) ledgerOf(ctx context.Context, name string) (id format.Sandbox, last int64, err error) {
	rec, err := e.DB.Sandbox(ctx, name)
	switch {
	case err == nil:
		id = format.Sandbox(rec.ID)
	case fault.Is(err, fault.NotFound) && format.Sandbox(name).Valid():
		id = format.Sandbox(name)
	default:
		return "", 0, err
	}
	last, lerr := e.Ledger.Last(ctx, id)
	if lerr == nil && last == 0 && err != nil && id != format.Host {
		return "", 0, err
	}
	return id, last, lerr
}

// LedgerRecords gives records of a sandbox.
func (e *Engine) LedgerRecords(ctx context.Context, name string, req wire.LedgerRequest) (res wire.LedgerResult, err error) {
	f, err := ledgerFilter(req)
	if err != nil {
		return res, err
	}
	id, _, err := e.ledgerOf(ctx, name)
	if err != nil {
		return res, err
	}
	var found []*format.Record
	if req.Last > 0 {
		found, err = e.Ledger.Newest(ctx, id, f, req.Last)
	} else {
		found, res.More, err = e.oldest(ctx, id, f, cmp.Or(req.Limit, maxLedger))
	}
	if err != nil {
		return res, err
	}
	res.Records = make([]wire.LedgerRecord, len(found))
	for i, r := range found {
		if res.Records[i], err = recordOnWire(r); err != nil {
			return res, err
		}
	}
	return res, nil
}

// oldest gives the first so many records that a filter wants, and whether there are more.
func (e *Engine) oldest(ctx context.Context, id format.Sandbox, f ledger.Filter, most int) (found []*format.Record, more bool, err error) {
	for r, err := range e.Ledger.Read(ctx, id, f) {
		if err != nil || ctx.Err() != nil {
			return nil, false, cmp.Or(err, context.Cause(ctx))
		}
		if len(found) == most {
			return found, true, nil
		}
		found = append(found, r)
	}
	return found, false, nil
}

// FollowLedger calls yield with records of a sandbox, and then with each that is appended,
// until ctx ends or yield gives an error, which it returns, or the sandbox is removed. The
// first call is with a record without a kind: there is such a ledger.
func (e *Engine) FollowLedger(ctx context.Context, name string, req wire.LedgerRequest, yield func(wire.LedgerRecord) error) error {
	f, err := ledgerFilter(req)
	if err != nil {
		return err
	}
	id, last, err := e.ledgerOf(ctx, name)
	if err != nil {
		return err
	}
	if req.Last > 0 {
		found, err := e.Ledger.Newest(ctx, id, f, req.Last)
		if err != nil {
			return err
		}
		f.From = max(f.From, last+1)
		if len(found) > 0 {
			f.From = found[0].Seq
		}
	}
	if err := yield(wire.LedgerRecord{}); err != nil {
		return err
	}
	for r, err := range e.Ledger.Follow(ctx, id, f) {
		if err != nil {
			return err
		}
		w, err := recordOnWire(r)
		if err == nil {
			err = yield(w)
		}
		if err != nil {
			return err
		}
		if r.Kind() == format.KindDelete && id != format.Host {
			return nil
		}
	}
	return context.Cause(ctx)
}

// ledgerFilter reads what is asked for.
func ledgerFilter(req wire.LedgerRequest) (f ledger.Filter, err error) {
	if req.From < 0 || req.Last < 0 || req.Last > maxLedger || req.Limit < 0 || req.Limit > maxLedger {
		return f, fault.New(fault.Invalid, "records from %d on, the last %d, %d at most", req.From, req.Last, req.Limit).WithHint("last and limit are %d at most; go on with from", maxLedger)
	}
	f = ledger.Filter{From: req.From, Since: req.Since}
	for _, k := range req.Kinds {
		kind := format.Kind(k)
		if !slices.Contains(format.Kinds(), kind) {
			var all []string
			for _, k := range format.Kinds() {
				all = append(all, string(k))
			}
			return f, fault.New(fault.Invalid, "there are no records of kind %.40q", k).WithHint("the kinds are: %s", strings.Join(all, ", "))
		}
		f.Kinds = append(f.Kinds, kind)
	}
	return f, nil
}

// InspectRecord gives a record with those that belong to it: of the same command, and what
// tells that it did not come about.
func (e *Engine) InspectRecord(ctx context.Context, name string, seq int64) (res wire.LedgerInspection, err error) {
	id, last, err := e.ledgerOf(ctx, name)
	if err != nil {
		return res, err
	}
	if seq < 1 || seq > last {
		return res, fault.New(fault.NotFound, "there is no record %d of %s", seq, name).WithHint("it has %d: coppice ledger %s", last, name)
	}
	var one *format.Record
	for r, err := range e.Ledger.Read(ctx, id, ledger.Filter{From: seq, Limit: 1}) {
		if err != nil {
			return res, err
		}
		one = r
	}
	if one == nil {
		return res, fault.New(fault.Corrupt, "record %d of %s is missing", seq, name).WithHint("find what is wrong with: coppice verify %s", name)
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
	for r, err := range e.Ledger.Read(ctx, id, ledger.Filter{From: from}) {
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
		res.Output = e.outputOf(id, sight.exit)
	}
	return res, nil
}

// execOf gives the command that a record is of; "" is none.
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

// VerifyLedger checks the records of a sandbox; see ledger.Reader.Verify.
func (e *Engine) VerifyLedger(ctx context.Context, name string, req wire.LedgerVerify) (res wire.LedgerVerified, err error) {
	id, _, err := e.ledgerOf(ctx, name)
	if err != nil {
		return res, err
	}
	p, err := e.Ledger.Verify(ctx, id, req.Keys, []byte(req.Checkpoint))
	if err != nil {
		return res, err
	}
	return wire.LedgerVerified{Records: p.Records, Origin: p.Log.Origin, Size: p.Log.Size, Root: p.Log.Root.String(), Grown: p.Grown}, nil
}

// verifyLedgers checks the records of a sandbox, or with name "" of all and of the host.
func (e *Engine) verifyLedgers(ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult) error {
	ids, names := []format.Sandbox{format.Host}, map[format.Sandbox]string{format.Host: wire.LedgerHost}
	if name == "" {
		recs, err := e.DB.Sandboxes(ctx)
		if err != nil {
			return err
		}
		for i := range recs {
			id := format.Sandbox(recs[i].ID)
			ids, names[id] = append(ids, id), recs[i].Name
		}
	} else {
		rec, err := e.DB.Sandbox(ctx, name)
		if err != nil {
			return err
		}
		ids[0] = format.Sandbox(rec.ID)
		names[ids[0]] = rec.Name
	}
	if _, err := e.Ledger.Size(ctx); err != nil { // what was appended can be read
		return err
	}
	done := int64(0)
	err := e.Ledger.VerifyEach(ctx, ids, func(id format.Sandbox, p *ledger.Proven, err error) error {
		progress(wire.Progress{Phase: "verify", Unit: "ledgers", Done: done, Total: int64(len(ids))})
		done++
		switch {
		case err == nil:
			res.Records += p.Records
		case fault.Is(err, fault.Corrupt), fault.Is(err, fault.Version):
			res.Damage = append(res.Damage, wire.Damage{Sandbox: names[id], Message: err.Error()})
		default:
			return err
		}
		return nil
	})
	if fault.Is(err, fault.Corrupt) { // what is signed, and so of all
		res.Damage = append(res.Damage, wire.Damage{Message: err.Error()})
		return nil
	}
	return err
}

// ExportLedger writes the bundle of a sandbox, with the proof that the log grew from older
// sizes; see ledger.Ledger.Export.
func (e *Engine) ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error {
	id, last, err := e.ledgerOf(ctx, name)
	if err == nil && last == 0 {
		err = fault.New(fault.NotFound, "there are no records of %s", name)
	}
	if err != nil {
		return err
	}
	return e.Ledger.Export(ctx, id, w, old...)
}

// LedgerCheckpoint gives the signed checkpoint of the log.
func (e *Engine) LedgerCheckpoint(ctx context.Context) (res wire.LedgerCheckpoint, err error) {
	signed, err := e.Ledger.Checkpoint(ctx)
	if err != nil {
		return res, err
	}
	keys, err := e.Ledger.Keys()
	if err != nil {
		return res, err
	}
	return wire.LedgerCheckpoint{Checkpoint: string(signed), Key: keys[len(keys)-1].Key}, nil
}

// recordOnWire gives a record as it travels.
func recordOnWire(r *format.Record) (w wire.LedgerRecord, err error) {
	w = wire.LedgerRecord{Seq: r.Seq, Leaf: r.Leaf, Time: r.Time, Kind: string(r.Kind()), Observer: string(r.Observer), Sandbox: string(r.Sandbox),
		Name: r.Name, Policy: r.Policy, Tier: r.Tier, Prev: r.Prev.String(), Text: sentence(r.Body)}
	b, err := json.Marshal(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &w.Body)
	}
	return w, err
}

// sentence tells what a record does, for people.
func sentence(body format.Body) string {
	switch b := body.(type) {
	case *format.Apply:
		return words(b.Way, prefixed("onto ", strings.TrimPrefix(b.Onto, "refs/heads/")), fmt.Sprintf("of %s", b.Repo), fmt.Sprintf("%d paths", b.Changes), prefixed("as ", b.New), prefixed("trusted ", strings.Join(b.Marks, ", ")))
	case *format.Approval:
		return words(b.Answer, b.Question, prefixed("by ", b.By), prefixed("until ", b.Until))
	case *format.Archive:
		return fmt.Sprintf("records %d to %d", b.First, b.Last)
	case *format.Create:
		return words(prefixed("from ", b.Base), prefixed("at ", b.Snapshot))
	case *format.Delete:
		if b.Ledger {
			return fmt.Sprintf("sandbox %s with its ledger of %d records", b.Sandbox, b.Records)
		}
		return "sandbox " + b.Sandbox
	case *format.Denial:
		return words(b.Syscall, b.Path, prefixed("by ", b.Program), b.Reason, times(b.Count))
	case *format.Drop:
		return words(strings.Join(b.Snapshots, " "), "("+b.Reason+")")
	case *format.Exec:
		return words(b.Exec, commandLine(b.Args))
	case *format.Exit:
		return words(b.Exec, fmt.Sprintf("code %d", b.Code), prefixed("SIG", b.Signal), fmt.Sprint("after ", time.Duration(b.DurationNanos).Round(time.Millisecond)),
			b.Reason, prefixed("at ", b.Snapshot))
	case *format.Fork:
		return words(b.Child, prefixed("at ", b.Snapshot))
	case *format.Grant:
		return words(b.Event, b.Grant, prefixed("for ", b.Host), prefixed("until ", b.Until))
	case *format.Key:
		return b.New
	case *format.Limit:
		return words(b.Limit, prefixed("by ", b.Exec))
	case *format.Lost:
		return words(fmt.Sprint(b.Count), b.Of, "("+b.Reason+")")
	case *format.Network:
		return words(b.Verdict, b.Proto, b.Method, place(b)+b.Path, times(b.Count), prefixed("rule ", b.Rule), b.Reason)
	case *format.Pause:
		return b.Event
	case *format.Policy:
		return words(b.After, prefixed("by ", b.By), b.Reason, prefixed("until ", b.Until))
	case *format.Program:
		return words(commandLine(append([]string{b.Path}, b.Args...)), times(b.Count))
	case *format.Propose:
		return words(fmt.Sprintf("%d files", b.Changes), "as "+b.Branch, "at "+b.Work)
	case *format.Rebase:
		return words("to "+b.To, "from "+b.From, conflicts(b.Conflicts))
	case *format.Reseal:
		return words(b.Step, b.Detail, prefixed("failed: ", b.Error))
	case *format.Rollback:
		how := ""
		switch {
		case b.InPlace:
			how = "in place"
		case b.Memory != "":
			how = "with its memory"
		}
		return words("to "+b.To, "from "+b.From, how)
	case *format.Session:
		return words(b.Exec, b.Event, prefixed("by ", b.By))
	case *format.Snapshot:
		return words(b.Snapshot, "("+b.Cause+")", b.Label)
	case *format.Start:
		return words(fmt.Sprintf("%d enforced", len(b.Enforced)), prefixed("lacking ", strings.Join(b.Lacking, ", ")))
	case *format.Stop:
		return b.Reason
	case *format.Tournament:
		return words(fmt.Sprintf("%d candidates", len(b.Candidates)), prefixed("won by ", b.Winner))
	case *format.Undone:
		return fmt.Sprintf("record %d: %s", b.Seq, b.Reason)
	}
	return ""
}

// words joins those that are not empty.
func words(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(s string) bool { return s == "" }), " ")
}

// prefixed is a text after what leads to it, or nothing.
func prefixed(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

// conflicts says how many are left, where some are.
func conflicts(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("(%d conflicts)", n)
}

// times says how often, where that is more than once.
func times(n int64) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf("%d times", n)
}

// place is where a network record leads.
func place(b *format.Network) string {
	host := b.Host
	if host == "" {
		host = b.Addr
	}
	if b.Port > 0 {
		host += ":" + itoa(b.Port)
	}
	return host
}
