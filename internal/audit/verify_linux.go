//go:build linux

package audit

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// VerifyLedger checks the records of a sandbox; see ledger.Reader.Verify.
func (rd *Reader) VerifyLedger(
	ctx context.Context, name string, req wire.LedgerVerify,
) (res wire.LedgerVerified, err error) {
	id, _, err := rd.Whose(ctx, name)
	if err != nil {
		return res, err
	}
	p, err := rd.ledger.Verify(ctx, id, req.Keys, []byte(req.Checkpoint))
	if err != nil {
		return res, err
	}
	return wire.LedgerVerified{Records: p.Records, Origin: p.Log.Origin, Size: p.Log.Size, Root: p.Log.Root.String(),
		Grown: p.Grown}, nil
}

// VerifyAll checks the records of a sandbox or, if name is "", of all sandboxes and of the host.
func (rd *Reader) VerifyAll(
	ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult,
) error {
	ids, names := []format.Sandbox{format.Host}, map[format.Sandbox]string{format.Host: wire.LedgerHost}
	if name == "" {
		recs, err := rd.sandboxes.Sandboxes(ctx)
		if err != nil {
			return err
		}
		for i := range recs {
			id := format.Sandbox(recs[i].ID)
			ids, names[id] = append(ids, id), recs[i].Name
		}
	} else {
		rec, err := rd.sandboxes.Sandbox(ctx, name)
		if err != nil {
			return err
		}
		ids[0] = format.Sandbox(rec.ID)
		names[ids[0]] = rec.Name
	}
	if _, err := rd.ledger.Size(ctx); err != nil { // makes appended records readable
		return err
	}
	done := int64(0)
	err := rd.ledger.VerifyEach(ctx, ids, func(id format.Sandbox, p *ledger.Proven, err error) error {
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
	if fault.Is(err, fault.Corrupt) { // the signed part is damaged, so all records are affected
		res.Damage = append(res.Damage, wire.Damage{Message: err.Error()})
		return nil
	}
	return err
}
