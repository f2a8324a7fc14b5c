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
func (c *Client) LedgerEvents(ctx context.Context, name string, req wire.LedgerRequest, fn func(wire.LedgerRecord) error) error {
	return stream(ctx, c, at(name)+"/ledger/events?"+ledgerQuery(req), "the sandbox is gone, or the daemon has ended", fn)
}

// InspectRecord gives one record with those that belong to it.
func (c *Client) InspectRecord(ctx context.Context, name string, seq int64) (wire.LedgerInspection, error) {
	return get[wire.LedgerInspection](ctx, c, at(name)+"/ledger/records/"+strconv.FormatInt(seq, 10))
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

// ExportLedger writes the bundle of a sandbox, which a stranger verifies, to w. After an
// error w holds no whole one.
func (c *Client) ExportLedger(ctx context.Context, name string, w io.Writer) error {
	return c.archive(ctx, at(name)+"/ledger/bundle", w)
}

// LedgerCheckpoint gives the signed checkpoint of the log.
func (c *Client) LedgerCheckpoint(ctx context.Context) (wire.LedgerCheckpoint, error) {
	return get[wire.LedgerCheckpoint](ctx, c, "/v1/ledger/checkpoint")
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
