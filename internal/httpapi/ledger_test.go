package httpapi_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

func (f *fake) LedgerRecords(_ context.Context, name string, req wire.LedgerRequest) (wire.LedgerResult, error) {
	f.did("ledger", name, req)
	return wire.LedgerResult{More: true}, f.err
}

func (f *fake) FollowLedger(
	_ context.Context, name string, req wire.LedgerRequest, yield func(wire.LedgerRecord) error,
) error {
	f.did("followledger", name, req)
	for _, kind := range []string{"", "exec", "exit"} {
		if f.err != nil {
			return f.err
		}
		if err := yield(wire.LedgerRecord{Kind: kind}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) InspectRecord(_ context.Context, name string, seq int64) (wire.LedgerInspection, error) {
	f.did("inspect", name, seq)
	return wire.LedgerInspection{Undone: true}, f.err
}

func (f *fake) LedgerBlob(_ context.Context, name, blob string) ([]byte, error) {
	f.did("blob", name, blob)
	return []byte("kept"), f.err
}

func (f *fake) VerifyLedger(_ context.Context, name string, req wire.LedgerVerify) (wire.LedgerVerified, error) {
	f.did("verifyledger", name, req)
	return wire.LedgerVerified{Records: 3}, f.err
}

func (f *fake) ExportLedger(_ context.Context, name string, w io.Writer, old ...int64) error {
	f.did("export", name, old)
	if f.text == "" {
		return f.err
	}
	if _, err := io.WriteString(w, f.text); err != nil {
		return err
	}
	return f.err
}

func (f *fake) LedgerCheckpoint(context.Context) (wire.LedgerCheckpoint, error) {
	f.did("checkpoint")
	return wire.LedgerCheckpoint{Checkpoint: "c"}, f.err
}

func (f *fake) LedgerGrowth(_ context.Context, old int64) (wire.LedgerCheckpoint, error) {
	f.did("growth", old)
	return wire.LedgerCheckpoint{Growth: "g"}, f.err
}

func (f *fake) LedgerSummary(_ context.Context, name string) (wire.LedgerSummary, error) {
	f.did("summary", name)
	return wire.LedgerSummary{Risk: 7}, f.err
}

func (f *fake) ArchiveLedger(_ context.Context, name string, before time.Time) (wire.LedgerArchived, error) {
	f.did("archiveledger", name, before)
	return wire.LedgerArchived{Records: 5}, f.err
}

func (f *fake) LedgerKeys(context.Context) (wire.LedgerKeys, error) {
	f.did("ledgerkeys")
	return wire.LedgerKeys{Witness: "w"}, f.err
}

func (f *fake) RotateLedgerKey(context.Context) (wire.LedgerKeys, error) {
	f.did("rotate")
	return wire.LedgerKeys{Keys: []wire.LedgerKey{{Key: "k", From: 3, Current: true}}}, f.err
}

func (f *fake) LedgerCosign(_ context.Context, req wire.LedgerGrowth) (wire.LedgerCosigned, error) {
	f.did("cosign", req)
	return wire.LedgerCosigned{Size: 4}, f.err
}

func (f *fake) LedgerWitness(_ context.Context, req wire.LedgerGrowth) (wire.LedgerWitnessed, error) {
	f.did("witness", req)
	return wire.LedgerWitnessed{Size: 4}, f.err
}

func (f *fake) RemoveWithLedger(_ context.Context, name string, force bool) error {
	f.did("removewithledger", name, force)
	return f.err
}

func TestLedgerRoutes_ReachEngine(t *testing.T) {
	t.Parallel()
	f := &fake{text: "a bundle"}
	c := serve(t, f)
	ctx := t.Context()
	when := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	res, err := c.Ledger(ctx, "a/b",
		wire.LedgerRequest{From: 1, Since: when, Kinds: []string{"exec", "exit"}, Last: 2, Limit: 3})
	if err != nil || !res.More || res.Records == nil ||
		f.last() != `ledger["a/b",{"from":1,"since":"2026-01-02T03:04:05.0000006Z","kinds":["exec","exit"],"last":2,"limit":3}]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	kinds := ""
	err = c.LedgerEvents(ctx, "a", wire.LedgerRequest{}, func(r wire.LedgerRecord) error {
		kinds += r.Kind + " "
		return nil
	})
	if !client.IsKind(err, client.KindUnavailable) || kinds != "exec exit " {
		t.Errorf("%q, %v", kinds, err)
	}
	if res, err := c.InspectRecord(ctx, "a", 7); err != nil || !res.Undone || res.With == nil ||
		f.last() != `inspect["a",7]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if res, err := c.VerifyLedger(ctx, "a", wire.LedgerVerify{Keys: []string{"k"}, Checkpoint: "c"}); err != nil ||
		res.Records != 3 || f.last() != `verifyledger["a",{"keys":["k"],"checkpoint":"c"}]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	var kept bytes.Buffer
	if err := c.LedgerBlob(ctx, "a", "ab/c", &kept); err != nil || kept.String() != "kept" ||
		f.last() != `blob["a","ab/c"]` {
		t.Errorf("%q, %v after %s", kept.String(), err, f.last())
	}
	if res, err := c.LedgerCheckpoint(ctx); err != nil || res.Checkpoint != "c" {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := c.LedgerGrowth(ctx, 0); err != nil || res.Growth != "g" || f.last() != `growth[0]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if res, err := c.LedgerSummary(ctx, "a"); err != nil || res.Risk != 7 || f.last() != `summary["a"]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if res, err := c.ArchiveLedger(ctx, "a", when); err != nil || res.Records != 5 ||
		f.last() != `archiveledger["a","2026-01-02T03:04:05.0000006Z"]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if res, err := c.LedgerKeys(ctx); err != nil || res.Witness != "w" || res.Keys == nil {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := c.RotateLedgerKey(ctx); err != nil || len(res.Keys) != 1 || f.last() != `rotatenull` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	growth := wire.LedgerGrowth{Checkpoint: "c", Keys: []string{"k"}}
	if res, err := c.LedgerCosign(ctx, growth); err != nil || res.Size != 4 ||
		f.last() != `cosign[{"checkpoint":"c","keys":["k"]}]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if res, err := c.LedgerWitness(ctx, growth); err != nil || res.Size != 4 ||
		f.last() != `witness[{"checkpoint":"c","keys":["k"]}]` {
		t.Errorf("%+v, %v after %s", res, err, f.last())
	}
	if err := c.RemoveWithLedger(ctx, "a", true); err != nil || f.last() != `removewithledger["a",true]` {
		t.Errorf("%v after %s", err, f.last())
	}
	var b bytes.Buffer
	if err := c.ExportLedger(ctx, "a", &b, 3, 4); err != nil || b.String() != "a bundle" ||
		f.last() != `export["a",[3,4]]` {
		t.Errorf("%q, %v", b.String(), err)
	}
	f.err = fault.New(fault.Corrupt, "damaged")
	if err := c.ExportLedger(ctx, "a", &b); !client.IsKind(err, "corrupt") {
		t.Errorf("truncated bundle: %v", err)
	}
	f.text = ""
	if err := c.ExportLedger(ctx, "a", &b); !client.IsKind(err, "corrupt") {
		t.Error(err)
	}
}
