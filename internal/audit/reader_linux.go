//go:build linux

package audit

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// maxLedger is how many records are returned at a time; maxRelated, how many related records with one record.
const (
	maxLedger  = 1000
	maxRelated = 10_000
)

// Sandboxes finds existing sandboxes.
type Sandboxes interface {
	// Sandbox finds a sandbox by name or id.
	Sandbox(ctx context.Context, name string) (meta.Sandbox, error)
	Sandboxes(ctx context.Context) ([]meta.Sandbox, error)
}

// Reader answers queries about the records of sandboxes, and about the log that contains them. Its methods
// are safe for concurrent use.
type Reader struct {
	ledger    *ledger.Ledger
	witness   *ledger.Witness
	sandboxes Sandboxes
}

// NewReader returns a Reader of a ledger, which the caller closes.
func NewReader(l *ledger.Ledger, w *ledger.Witness, s Sandboxes) *Reader {
	return &Reader{ledger: l, witness: w, sandboxes: s}
}

// Whose finds the owner of records, and the number of its last record. The owner is a sandbox, by name or id; a
// removed sandbox, by id; or the host.
func (rd *Reader) Whose(ctx context.Context, name string) (id format.Sandbox, last int64, err error) {
	rec, err := rd.sandboxes.Sandbox(ctx, name)
	switch {
	case err == nil:
		id = format.Sandbox(rec.ID)
	case fault.Is(err, fault.NotFound) && format.Sandbox(name).Valid():
		id = format.Sandbox(name)
	default:
		return "", 0, err
	}
	last, lerr := rd.ledger.Last(ctx, id)
	if lerr == nil && last == 0 && err != nil && id != format.Host {
		return "", 0, err
	}
	return id, last, lerr
}

// LedgerRecords returns records of a sandbox.
func (rd *Reader) LedgerRecords(
	ctx context.Context, name string, req wire.LedgerRequest,
) (res wire.LedgerResult, err error) {
	f, err := ledgerFilter(req)
	if err != nil {
		return res, err
	}
	id, _, err := rd.Whose(ctx, name)
	if err != nil {
		return res, err
	}
	var found []*format.Record
	if req.Last > 0 {
		found, err = rd.ledger.Newest(ctx, id, f, req.Last)
	} else {
		found, res.More, err = rd.oldest(ctx, id, f, cmp.Or(req.Limit, maxLedger))
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

// oldest returns the first records that a filter selects, at most most, and whether there are more.
func (rd *Reader) oldest(
	ctx context.Context, id format.Sandbox, f ledger.Filter, most int,
) (found []*format.Record, more bool, err error) {
	for r, err := range rd.ledger.Read(ctx, id, f) {
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

// FollowLedger calls yield with records of a sandbox, and then with each record that is appended, until ctx is
// canceled, yield returns an error, which FollowLedger returns, or the sandbox is removed. The first call is with a
// record without a kind, which confirms that the ledger exists.
func (rd *Reader) FollowLedger(
	ctx context.Context, name string, req wire.LedgerRequest, yield func(wire.LedgerRecord) error,
) error {
	f, err := ledgerFilter(req)
	if err != nil {
		return err
	}
	id, last, err := rd.Whose(ctx, name)
	if err != nil {
		return err
	}
	if req.Last > 0 {
		found, err := rd.ledger.Newest(ctx, id, f, req.Last)
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
	for r, err := range rd.ledger.Follow(ctx, id, f) {
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

// ledgerFilter converts a request.
func ledgerFilter(req wire.LedgerRequest) (f ledger.Filter, err error) {
	if req.From < 0 || req.Last < 0 || req.Last > maxLedger || req.Limit < 0 || req.Limit > maxLedger {
		return f, fault.New(fault.Invalid, "invalid range of records: from %d, last %d, limit "+
			"%d", req.From, req.Last, req.Limit).
			WithHint("last and limit are at most %d; continue with from", maxLedger)
	}
	f = ledger.Filter{From: req.From, Since: req.Since}
	for _, k := range req.Kinds {
		kind := format.Kind(k)
		if !slices.Contains(format.Kinds(), kind) {
			var all []string
			for _, k := range format.Kinds() {
				all = append(all, string(k))
			}
			return f, fault.New(fault.Invalid, "unknown record kind %.40q", k).
				WithHint("the kinds are: %s", strings.Join(all, ", "))
		}
		f.Kinds = append(f.Kinds, kind)
	}
	return f, nil
}

// LedgerBlob returns a capture that a record of a sandbox names.
func (rd *Reader) LedgerBlob(ctx context.Context, name, blob string) ([]byte, error) {
	id, last, err := rd.Whose(ctx, name)
	if err != nil {
		return nil, err
	}
	if last == 0 {
		return nil, fault.New(fault.NotFound, "records of %s not found", name)
	}
	return rd.ledger.ReadBlob(id, blob)
}

// LedgerSummary returns the summary of the records of a sandbox.
func (rd *Reader) LedgerSummary(ctx context.Context, name string) (res wire.LedgerSummary, err error) {
	id, last, err := rd.Whose(ctx, name)
	if err == nil && last == 0 {
		err = fault.New(fault.NotFound, "records of %s not found", name)
	}
	if err != nil {
		return res, err
	}
	var one Summary
	for r, err := range rd.ledger.Read(ctx, id, ledger.Filter{}) {
		if err != nil {
			return res, err
		}
		one.Add(r)
	}
	return one.Result(), nil
}

// ExportLedger writes the bundle of a sandbox, with the proof that the log grew from older
// sizes; see ledger.Ledger.Export.
func (rd *Reader) ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error {
	id, last, err := rd.Whose(ctx, name)
	if err == nil && last == 0 {
		err = fault.New(fault.NotFound, "records of %s not found", name)
	}
	if err != nil {
		return err
	}
	return rd.ledger.Export(ctx, id, w, old...)
}

// ArchiveLedger compresses the records of a sandbox that are older than a time, in whole segments.
func (rd *Reader) ArchiveLedger(
	ctx context.Context, name string, before time.Time,
) (res wire.LedgerArchived, err error) {
	id, last, err := rd.Whose(ctx, name)
	if err != nil {
		return res, err
	}
	if before.IsZero() {
		return res, fault.New(fault.Invalid, "archiving requires a time")
	}
	called, err := rd.ledgerName(ctx, id, last)
	if err != nil {
		return res, err
	}
	res.Records, err = rd.ledger.Archive(ctx, id, called, before)
	return res, err
}

// ledgerName returns the name of a sandbox, or for a removed one that in its last record.
func (rd *Reader) ledgerName(ctx context.Context, id format.Sandbox, last int64) (name string, err error) {
	rec, err := rd.sandboxes.Sandbox(ctx, string(id))
	if err == nil || !fault.Is(err, fault.NotFound) {
		return rec.Name, err
	}
	found, err := rd.ledger.Newest(ctx, id, ledger.Filter{From: last}, 1)
	for _, r := range found {
		name = r.Name
	}
	return name, err
}
