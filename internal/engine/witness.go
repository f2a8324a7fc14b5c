//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// LedgerGrowth gives the signed checkpoint of the log, and the proof that it grew from an
// older size, 0 for nothing: what a witness is asked with.
func (e *Engine) LedgerGrowth(ctx context.Context, old int64) (res wire.LedgerCheckpoint, err error) {
	g, err := e.Ledger.Growth(ctx, old)
	if err != nil {
		return res, err
	}
	res.Checkpoint, res.Growth = string(g.Checkpoint), string(g.Text())
	keys, err := e.Ledger.Keys()
	if err != nil {
		return res, err
	}
	res.Key = keys[len(keys)-1].Key
	return res, nil
}

// LedgerCosign cosigns the checkpoint of another host's log; see ledger.Witness.
func (e *Engine) LedgerCosign(_ context.Context, req wire.LedgerGrowth) (res wire.LedgerCosigned, err error) {
	got, err := e.Witness.Cosign([]byte(req.Checkpoint), req.Keys)
	if err != nil {
		return res, err
	}
	return wire.LedgerCosigned{Checkpoint: string(got.Checkpoint), Signature: got.Signature, Key: got.Key,
		Origin: got.Log.Origin, Size: got.Log.Size, Before: got.Before}, nil
}

// LedgerWitness keeps a checkpoint of this log that witnesses cosigned; see
// ledger.Ledger.AddWitness.
func (e *Engine) LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (res wire.LedgerWitnessed, err error) {
	if err := e.Ledger.AddWitness(ctx, []byte(req.Checkpoint), req.Keys...); err != nil {
		return res, err
	}
	keys, err := e.Ledger.Keys()
	if err != nil {
		return res, err
	}
	c, err := keys.Checkpoint([]byte(req.Checkpoint))
	return wire.LedgerWitnessed{Origin: c.Origin, Size: c.Size}, err
}

// LedgerKeys gives the verifier keys of this host.
func (e *Engine) LedgerKeys(context.Context) (res wire.LedgerKeys, err error) {
	keys, err := e.Ledger.Keys()
	if err != nil {
		return res, err
	}
	for i, k := range keys {
		res.Keys = append(res.Keys, wire.LedgerKey{Key: k.Key, From: k.From, Current: i+1 == len(keys)})
	}
	res.Witness, err = e.Witness.Key()
	return res, err
}

// RotateLedgerKey has the log signed by a new key from now on.
func (e *Engine) RotateLedgerKey(ctx context.Context) (res wire.LedgerKeys, err error) {
	if err := e.Ledger.RotateKey(ctx); err != nil {
		return res, err
	}
	return e.LedgerKeys(ctx)
}

// ArchiveLedger compresses the records of a sandbox that are older than a time, as far as
// whole segments go.
func (e *Engine) ArchiveLedger(ctx context.Context, name string, before time.Time) (res wire.LedgerArchived, err error) {
	id, last, err := e.ledgerOf(ctx, name)
	if err != nil {
		return res, err
	}
	if before.IsZero() {
		return res, fault.New(fault.Invalid, "no time is given: records of before it are archived")
	}
	called, err := e.ledgerName(ctx, id, last)
	if err != nil {
		return res, err
	}
	res.Records, err = e.Ledger.Archive(ctx, id, called, before)
	return res, err
}

// ledgerName is what a sandbox is called, or was when its last record was written.
func (e *Engine) ledgerName(ctx context.Context, id format.Sandbox, last int64) (name string, err error) {
	rec, err := e.DB.Sandbox(ctx, string(id))
	if err == nil || !fault.Is(err, fault.NotFound) {
		return rec.Name, err
	}
	found, err := e.Ledger.Newest(ctx, id, ledger.Filter{From: last}, 1)
	for _, r := range found {
		name = r.Name
	}
	return name, err
}
