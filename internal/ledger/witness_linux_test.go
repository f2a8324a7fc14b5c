package ledger

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

func TestBundle_VerifiesWitnessedGrowth(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	appended(t, l, draft(boxA, 1), draft(boxB, 2), draft(boxA, 3))
	signed, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	c, err := keys.Checkpoint(signed)
	if err != nil {
		t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	witness := format.WitnessKey("witness.example/one", pub)
	at := time.Unix(1_800_000_000, 0).UTC()
	cosigned := append(bytes.Clone(signed), format.Cosign(c, "witness.example/one", key, at)...)
	if err := l.AddWitness(t.Context(), signed, witness); !fault.Is(err, fault.Invalid) {
		t.Errorf("without a cosignature: %v", err)
	}
	if err := l.AddWitness(t.Context(), cosigned, witness); err != nil {
		t.Fatal(err)
	}
	appended(t, l, draft(boxA, 4), draft(boxB, 5))
	if err := l.RotateKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := bundled(t, l, boxA)
	v, err := checked(b, format.Demands{Witnesses: []string{witness}})
	if err != nil || v.Witnessed != 3 || len(v.Seen) != 1 || !v.Seen[0].Equal(at) {
		t.Errorf("%+v, %v", v, err)
	}
	_, other, _ := ed25519.GenerateKey(nil)
	if _, err := checked(b,
		format.Demands{
			Witnesses: []string{format.WitnessKey("witness.example/one", other.Public().(ed25519.PublicKey))}}); !fault.Is(err,
		fault.Corrupt) {
		t.Errorf("another witness: %v", err)
	}
	p, err := l.Prove(t.Context(), &appended(t, l, draft(boxB, 6))[0])
	if err != nil {
		t.Fatal(err)
	}
	if now, err := keysOf(t, l).Checkpoint(p.Checkpoint); err != nil {
		t.Error(err)
	} else if lines := execs(t, l, boxB, Filter{}); len(lines) != 3 || now.Size != p.Leaf+1 {
		t.Error(lines, now)
	} else if err := tlog.CheckRecord(p.Proof, now.Size, tlog.Hash(now.Root), p.Leaf,
		tlog.Hash(l.state.heads[boxB].hash)); err != nil {
		t.Error(err)
	}
}

func keysOf(t *testing.T, l *Ledger) format.Keys {
	t.Helper()
	keys, err := l.Keys()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestGrowth_RefusesRewrittenLog checks that a ledger that was reset to an earlier state, or created again with its
// key, does not prove growth from a checkpoint that another host holds.
func TestGrowth_RefusesRewrittenLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 1))
	if _, err := l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := copied(t, dir)
	appended(t, l, draft(boxA, 2))
	held, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, _ := opened(t, before, Options{})
	for i := range 3 {
		if _, err := again.Verify(t.Context(), boxA, nil, held); !fault.Is(err, fault.Corrupt) {
			t.Errorf("with %d other records: %v", i, err)
		}
		appended(t, again, draft(boxA, 100+i))
		if _, err := again.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := checked(bundled(t, again, boxA, 2), format.Demands{Old: held}); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a bundle: %v", err)
	}
}

func TestBlobs_AreNamedByKeyAndExported(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	content := []byte("output\n")
	name, err := l.WriteBlob(boxA, content)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := l.WriteBlob(boxA, content)
	other, _ := l.WriteBlob(boxB, content)
	empty, err := l.WriteBlob(boxA, nil)
	if err != nil || again != name || other == name {
		t.Error(name, again, other, err)
	}
	if got, err := l.ReadBlob(boxA, name); err != nil || !bytes.Equal(got, content) {
		t.Error(got, err)
	}
	if got, err := l.ReadBlob(boxA, empty); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
	if _, err := l.ReadBlob(boxA, "../../key"); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	gone := format.HashLine([]byte("never kept")).String()
	exit := draft(boxA, 0)
	exit.Body = &format.Exit{Exec: "0",
		Output: []format.Output{{Stream: "stdout", Blob: name}, {Stream: "stderr", Blob: gone}}}
	appended(t, l, exit)
	v, err := checked(bundled(t, l, boxA), format.Demands{})
	if err != nil || v.Blobs != 1 || len(v.Absent) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := l.WriteBlob(boxA, make([]byte, format.MaxBlob+1)); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}
