//go:build linux

package audit

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
)

// LedgerCheckpoint returns the signed checkpoint of the log.
func (rd *Reader) LedgerCheckpoint(ctx context.Context) (res wire.LedgerCheckpoint, err error) {
	signed, err := rd.ledger.Checkpoint(ctx)
	if err != nil {
		return res, err
	}
	keys, err := rd.ledger.Keys()
	if err != nil {
		return res, err
	}
	return wire.LedgerCheckpoint{Checkpoint: string(signed), Key: keys[len(keys)-1].Key}, nil
}

// LedgerGrowth returns the signed checkpoint of the log, and the proof that it grew from an older size (0: empty). It
// is the input for a witness.
func (rd *Reader) LedgerGrowth(ctx context.Context, old int64) (res wire.LedgerCheckpoint, err error) {
	g, err := rd.ledger.Growth(ctx, old)
	if err != nil {
		return res, err
	}
	res.Checkpoint, res.Growth = string(g.Checkpoint), string(g.Text())
	keys, err := rd.ledger.Keys()
	if err != nil {
		return res, err
	}
	res.Key = keys[len(keys)-1].Key
	return res, nil
}

// LedgerCosign cosigns the checkpoint of another host's log; see ledger.Witness.
func (rd *Reader) LedgerCosign(_ context.Context, req wire.LedgerGrowth) (res wire.LedgerCosigned, err error) {
	got, err := rd.witness.Cosign([]byte(req.Checkpoint), req.Keys)
	if err != nil {
		return res, err
	}
	return wire.LedgerCosigned{Checkpoint: string(got.Checkpoint), Signature: got.Signature, Key: got.Key,
		Origin: got.Log.Origin, Size: got.Log.Size, Before: got.Before}, nil
}

// LedgerWitness stores a checkpoint of this log that witnesses cosigned; see ledger.Ledger.AddWitness.
func (rd *Reader) LedgerWitness(ctx context.Context, req wire.LedgerGrowth) (res wire.LedgerWitnessed, err error) {
	if err := rd.ledger.AddWitness(ctx, []byte(req.Checkpoint), req.Keys...); err != nil {
		return res, err
	}
	keys, err := rd.ledger.Keys()
	if err != nil {
		return res, err
	}
	c, err := keys.Checkpoint([]byte(req.Checkpoint))
	return wire.LedgerWitnessed{Origin: c.Origin, Size: c.Size}, err
}

// LedgerKeys returns the verifier keys of this host.
func (rd *Reader) LedgerKeys(context.Context) (res wire.LedgerKeys, err error) {
	keys, err := rd.ledger.Keys()
	if err != nil {
		return res, err
	}
	for i, k := range keys {
		res.Keys = append(res.Keys, wire.LedgerKey{Key: k.Key, From: k.From, Current: i+1 == len(keys)})
	}
	res.Witness, err = rd.witness.Key()
	return res, err
}

// RotateLedgerKey makes a new key, which signs the log from now on.
func (rd *Reader) RotateLedgerKey(ctx context.Context) (res wire.LedgerKeys, err error) {
	if err := rd.ledger.RotateKey(ctx); err != nil {
		return res, err
	}
	return rd.LedgerKeys(ctx)
}
