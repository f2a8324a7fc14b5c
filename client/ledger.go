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

// Ledger gives what is recorded of a sandbox: by its name or id, or by its id where it was
// removed. wire.LedgerHost has what belongs to no sandbox.
func (c *Client) Ledger(ctx context.Context, name string, req wire.LedgerRequest) (wire.LedgerResult, error) {
	return get[wire.LedgerResult](ctx, c, at(name)+"/ledger?"+ledgerQuery(req))
}

// LedgerEvents calls fn with what is recorded, and then with each record that is appended,
// until ctx ends or fn gives an error, which is returned. It ends with KindUnavailable when
// the sandbox is removed or the daemon stops.
func (c *Client) LedgerEvents(
	ctx context.Context, name string, req wire.LedgerRequest, fn func(wire.LedgerRecord) error,
) error {
	return stream(ctx, c, at(name)+"/ledger/events?"+ledgerQuery(req), "the sandbox was removed, or the daemon has "+
		"exited", fn)
}

// InspectRecord gives one record with those that belong to it.
func (c *Client) InspectRecord(ctx context.Context, name string, seq int64) (wire.LedgerInspection, error) {
	return get[wire.LedgerInspection](ctx, c, at(name)+"/ledger/records/"+strconv.FormatInt(seq, 10))
}

// LedgerPrograms gives the programs that one record stands for, from one on, which counts from 0.
func (c *Client) LedgerPrograms(ctx context.Context, name string, seq, from int64) (wire.LedgerPrograms, error) {
	return get[wire.LedgerPrograms](ctx, c,
		at(name)+"/ledger/records/"+strconv.FormatInt(seq, 10)+"/programs?from="+strconv.FormatInt(from, 10))
}

// LedgerBlob writes a capture that a record names, such as what was kept of the output of
// a command, to w. After an error w holds no whole one.
func (c *Client) LedgerBlob(ctx context.Context, name, blob string, w io.Writer) error {
	return c.archive(ctx, at(name)+"/ledger/blobs/"+url.PathEscape(blob), w)
}

// VerifyLedger checks that the records of a sandbox are those that were appended: else it
// is an error that names the first that does not fit.
func (c *Client) VerifyLedger(ctx context.Context, name string, req wire.LedgerVerify) (wire.LedgerVerified, error) {
	return post[wire.LedgerVerified](ctx, c, at(name)+"/ledger/verify", req)
}

// ExportLedger writes the bundle of a sandbox, which a stranger verifies, to w; with the proof
// that the log grew from older sizes, of which he holds checkpoints. After an error w holds no
// whole one.
func (c *Client) ExportLedger(ctx context.Context, name string, w io.Writer, old ...int64) error {
	sizes := make([]string, len(old))
	for i, n := range old {
		sizes[i] = strconv.FormatInt(n, 10)
	}
	return c.archive(ctx, at(name)+"/ledger/bundle?from="+strings.Join(sizes, ","), w)
}

// LedgerCheckpoint gives the signed checkpoint of the log.
func (c *Client) LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error) {
	return get[wire.LedgerCheckpoint](ctx, c, "/v1/ledger/checkpoint")
}

// LedgerGrowth is LedgerCheckpoint with the proof that the log grew from an older size, 0 for
// nothing: what a witness is asked with.
func (c *Client) LedgerGrowth(ctx context.Context, old int64) (wire.LedgerCheckpoint, error) {
	return get[wire.LedgerCheckpoint](ctx, c, "/v1/ledger/checkpoint?from="+strconv.FormatInt(old, 10))
}

// LedgerCosign has the checkpoint of another host's log cosigned, which must have grown from
// the one that was cosigned before: else the error says how it did not.
func (c *Client) LedgerCosign(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerCosigned, error) {
	return post[wire.LedgerCosigned](ctx, c, "/v1/ledger/cosign", req)
}

// LedgerWitness keeps a checkpoint of this log that witnesses cosigned, all that are named.
func (c *Client) LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (wire.LedgerWitnessed, error) {
	return post[wire.LedgerWitnessed](ctx, c, "/v1/ledger/witness", req)
}

// LedgerKeys gives the verifier keys of the log.
func (c *Client) LedgerKeys(ctx context.Context) (wire.LedgerKeys, error) {
	return get[wire.LedgerKeys](ctx, c, "/v1/ledger/keys")
}

// RotateLedgerKey has the log signed by a new key from now on, and gives all keys.
func (c *Client) RotateLedgerKey(ctx context.Context) (wire.LedgerKeys, error) {
	return post[wire.LedgerKeys](ctx, c, "/v1/ledger/rotate-key", nil)
}

// ArchiveLedger compresses the records of a sandbox that are older than a time, as far as
// whole segments go. They are read and verified as ever.
func (c *Client) ArchiveLedger(ctx context.Context, name string, before time.Time) (wire.LedgerArchived, error) {
	return post[wire.LedgerArchived](ctx, c, at(name)+"/ledger/archive", wire.LedgerArchive{Before: before})
}

// LedgerSummary gives what the records of a sandbox tell of it as a whole.
func (c *Client) LedgerSummary(ctx context.Context, name string) (wire.LedgerSummary, error) {
	return get[wire.LedgerSummary](ctx, c, at(name)+"/ledger/summary")
}

// RemoveWithLedger is Remove for a sandbox whose records go as well. Of one that was
// removed before, which is named by its id, they go alone.
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
