package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Ledger returns the records of a sandbox, by its name or ID; a removed sandbox has only its ID. wire.LedgerHost
// selects the records that belong to no sandbox.
func (c *Client) Ledger(ctx context.Context, name string, req wire.LedgerRequest) (wire.LedgerResult, error) {
	return get[wire.LedgerResult](ctx, c, at(name)+"/ledger?"+ledgerQuery(req))
}

// LedgerEvents calls fn with the existing records, and then with each new record, until ctx ends or fn returns an
// error, which it returns. It returns KindUnavailable when the sandbox is removed or the daemon stops.
func (c *Client) LedgerEvents(
	ctx context.Context, name string, req wire.LedgerRequest, fn func(wire.LedgerRecord) error,
) error {
	return stream(ctx, c, at(name)+"/ledger/events?"+ledgerQuery(req), "the sandbox was removed, or the daemon has "+
		"exited", fn)
}

// InspectRecord returns one record and its related records.
func (c *Client) InspectRecord(ctx context.Context, name string, seq int64) (wire.LedgerInspection, error) {
	return get[wire.LedgerInspection](ctx, c, at(name)+"/ledger/records/"+strconv.FormatInt(seq, 10))
}

// LedgerPrograms returns the programs that one record stands for, starting at from, which counts from 0.
func (c *Client) LedgerPrograms(ctx context.Context, name string, seq, from int64) (wire.LedgerPrograms, error) {
	return get[wire.LedgerPrograms](ctx, c,
		at(name)+"/ledger/records/"+strconv.FormatInt(seq, 10)+"/programs?from="+strconv.FormatInt(from, 10))
}

// LedgerBlob writes a capture that a record names, such as the captured output of a command, to w. If it fails, the
// capture in w is incomplete.
func (c *Client) LedgerBlob(ctx context.Context, name, blob string, w io.Writer) error {
	return c.archive(ctx, at(name)+"/ledger/blobs/"+url.PathEscape(blob), w)
}

// VerifyLedger verifies the records of a sandbox. If they do not verify, the error names the first record that does
// not fit.
func (c *Client) VerifyLedger(ctx context.Context, name string, req wire.LedgerVerify) (wire.LedgerVerified, error) {
	return post[wire.LedgerVerified](ctx, c, at(name)+"/ledger/verify", req)
}

// ExportLedger writes a bundle of a sandbox's records to w, which a third party can verify. For a verifier that holds
// older checkpoints, it includes consistency proofs from the sizes old. If it fails, the bundle in w is incomplete.
func (c *Client) ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error {
	sizes := make([]string, len(old))
	for i, n := range old {
		sizes[i] = strconv.FormatInt(n, 10)
	}
	return c.archive(ctx, at(name)+"/ledger/bundle?from="+strings.Join(sizes, ","), w)
}

// LedgerCheckpoint returns the signed checkpoint of the log.
func (c *Client) LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error) {
	return get[wire.LedgerCheckpoint](ctx, c, "/v1/ledger/checkpoint")
}

// LedgerGrowth is LedgerCheckpoint with a consistency proof from an older size, 0 for the empty log. A witness
// expects this.
func (c *Client) LedgerGrowth(ctx context.Context, old int64) (wire.LedgerCheckpoint, error) {
	return get[wire.LedgerCheckpoint](ctx, c, "/v1/ledger/checkpoint?from="+strconv.FormatInt(old, 10))
}

// LedgerCosign cosigns the checkpoint of another host's log. The log must be consistent with the checkpoint that was
// cosigned last; otherwise the error says why it is not.
func (c *Client) LedgerCosign(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerCosigned, error) {
	return post[wire.LedgerCosigned](ctx, c, "/v1/ledger/cosign", req)
}

// LedgerWitness stores a checkpoint of this log that all named witnesses have cosigned.
func (c *Client) LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerWitnessed, error) {
	return post[wire.LedgerWitnessed](ctx, c, "/v1/ledger/witness", req)
}

// LedgerKeys returns the verifier keys of the log.
func (c *Client) LedgerKeys(ctx context.Context) (wire.LedgerKeys, error) {
	return get[wire.LedgerKeys](ctx, c, "/v1/ledger/keys")
}

// RotateLedgerKey makes the log use a new signing key, and returns all keys.
func (c *Client) RotateLedgerKey(ctx context.Context) (wire.LedgerKeys, error) {
	return post[wire.LedgerKeys](ctx, c, "/v1/ledger/rotate-key", nil)
}

// ArchiveLedger compresses the records of a sandbox that are older than before, in whole segments. They can be read
// and verified as before.
func (c *Client) ArchiveLedger(ctx context.Context, name string, before time.Time) (wire.LedgerArchived, error) {
	return post[wire.LedgerArchived](ctx, c, at(name)+"/ledger/archive", wire.LedgerArchive{Before: before})
}

// LedgerSummary summarizes the records of a sandbox.
func (c *Client) LedgerSummary(ctx context.Context, name string) (wire.LedgerSummary, error) {
	return get[wire.LedgerSummary](ctx, c, at(name)+"/ledger/summary")
}

// RemoveWithLedger is Remove that also deletes the sandbox's records. For a removed sandbox, named by its ID, it
// deletes only the records.
func (c *Client) RemoveWithLedger(ctx context.Context, name string, force bool) error {
	return c.call(ctx, http.MethodDelete, at(name)+"?with_ledger=true&force="+strconv.FormatBool(force), nil, nil)
}

func ledgerQuery(req wire.LedgerRequest) string {
	q := url.Values{}
	for key, n := range map[string]int64{"from": req.From, "last": int64(req.Last), "limit": int64(req.Limit)} {
		if n != 0 {
			q.Set(key, strconv.FormatInt(n, 10))
		}
	}
	if !req.Since.IsZero() {
		q.Set("since", req.Since.UTC().Format(time.RFC3339Nano))
	}
	if len(req.Kinds) > 0 {
		q.Set("kinds", strings.Join(req.Kinds, ","))
	}
	return q.Encode()
}
