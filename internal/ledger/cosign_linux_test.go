package ledger

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// grown returns the request to a witness.
func grown(t *testing.T, l *Ledger, old int64) []byte {
	t.Helper()
	g, err := l.Growth(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	return g.Text()
}

// TestWitness_HostsCosignEachOther lets two hosts cosign each other across rotations of the key, and checks that each
// keeps and exports the cosignatures that it received.
func TestWitness_HostsCosignEachOther(t *testing.T) {
	t.Parallel()
	type host struct {
		l *Ledger
		w *Witness
	}
	made := func() host {
		dir := t.TempDir()
		l, _ := opened(t, filepath.Join(dir, "ledger"), Options{})
		return host{l, NewWitness(dir, vfs.OS(), time.Now)}
	}
	a, b := made(), made()
	if key, err := a.w.Key(); err != nil || key != "" {
		t.Fatalf("%q, %v", key, err)
	}
	last := map[*Ledger]int64{}
	for i := range 5 {
		for _, pair := range [][2]host{{a, b}, {b, a}} {
			log, witness := pair[0].l, pair[1].w
			appended(t, log, draft(boxA, i), draft(boxB, i))
			if i == 3 {
				if err := log.RotateKey(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var trusted []string
			for _, k := range keysOf(t, log) {
				trusted = append(trusted, k.Key)
			}
			got, err := witness.Cosign(grown(t, log, last[log]), trusted)
			if err != nil || got.Before != last[log] {
				t.Fatalf("%+v, %v", got, err)
			}
			last[log] = got.Log.Size
			if key, err := witness.Key(); err != nil || key != got.Key {
				t.Errorf("%q, %v", key, err)
			}
			if err := log.AddWitness(t.Context(), got.Checkpoint, got.Key); err != nil {
				t.Fatal(err)
			}
			v, err := checked(bundled(t, log, boxA), format.Demands{Witnesses: []string{got.Key}})
			if err != nil || v.Witnessed != got.Log.Size {
				t.Errorf("%+v, %v", v, err)
			}
		}
	}
}

// TestWitness_RefusesForkedLog checks that a log that was reset, or contradicts a checkpoint that the witness saw, is
// not cosigned, whatever it proves.
func TestWitness_RefusesForkedLog(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 1))
	w := NewWitness(home, vfs.OS(), time.Now)
	trusted := []string{keysOf(t, l)[0].Key}
	if _, err := w.Cosign(grown(t, l, 0), trusted); err != nil {
		t.Fatal(err)
	}
	before := copied(t, dir)
	appended(t, l, draft(boxA, 2), draft(boxA, 3))
	proven := grown(t, l, 1)
	if _, err := w.Cosign(grown(t, l, 0), trusted); !fault.Is(err, fault.Conflict) {
		t.Errorf("a proof from another size: %v", err)
	}
	if _, err := w.Cosign(proven, nil); !fault.Is(err, fault.Invalid) {
		t.Errorf("no key: %v", err)
	}
	other, _ := opened(t, t.TempDir(), Options{})
	if _, err := w.Cosign(proven, []string{keysOf(t, other)[0].Key}); !fault.Is(err, fault.Denied) {
		t.Errorf("another log's key: %v", err)
	}
	if _, err := w.Cosign(proven, trusted); err != nil {
		t.Fatal(err)
	}
	forked, _ := opened(t, before, Options{})
	if _, err := w.Cosign(grown(t, forked, 1), trusted); !fault.Is(err, fault.Corrupt) {
		t.Errorf("rolled back: %v", err)
	}
	for i := range 4 {
		appended(t, forked, draft(boxA, 100+i))
		size, err := forked.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Cosign(grown(t, forked, min(3, size)), trusted); !fault.Is(err, fault.Corrupt) {
			t.Errorf("forked, of %d: %v", size, err)
		}
	}
	again := NewWitness(home, vfs.OS(), time.Now) // as after a restart
	if got, err := again.Cosign(grown(t, l, 3), trusted); err != nil || got.Before != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(home, dirSeen)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Cosign(grown(t, l, 0), trusted); err == nil {
		t.Error("cosigned without the checkpoint that was cosigned before")
	}
	for _, name := range []string{dirWitness, fileWitnessKey} {
		info, err := os.Lstat(filepath.Join(home, name))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestWitness_RemembersAfterWriteFailure checks that whichever write fails, a later
// cosignature does not contradict an earlier one.
func TestWitness_RemembersAfterWriteFailure(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	appended(t, l, draft(boxA, 1))
	trusted := []string{keysOf(t, l)[0].Key}
	first := grown(t, l, 0)
	appended(t, l, draft(boxA, 2))
	second := grown(t, l, 1)
	for k := 1; ; k++ {
		home, faulty := inMemory(t), &vfs.Faulty{FS: vfs.OS()}
		w := NewWitness(home, faulty, time.Now)
		faulty.FailAt(k, syscall.EIO, false)
		signed := int64(0)
		for _, one := range [][]byte{first, second} {
			if got, err := w.Cosign(one, trusted); err == nil {
				signed = got.Log.Size
			}
		}
		reached := faulty.Failed()
		faulty.FailAt(0, 0, false)
		if _, err := w.Cosign(first, trusted); signed > 1 && !fault.Is(err, fault.Corrupt) {
			t.Errorf("call %d: size %d was cosigned, and then an older one: %v", k, signed, err)
		}
		if !reached {
			break
		}
	}
}

// TestWitness_RemembersAfterPowerLoss checks that whenever the power fails, a later
// cosignature does not contradict an earlier one.
func TestWitness_RemembersAfterPowerLoss(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	appended(t, l, draft(boxA, 1))
	trusted := []string{keysOf(t, l)[0].Key}
	first := grown(t, l, 0)
	appended(t, l, draft(boxA, 2))
	second := grown(t, l, 1)
	for seed := range uint64(10) {
		home, left := inMemory(t), inMemory(t)
		disk, signed, calls := vfs.NewCrashable(home), int64(0), 0
		check := func() {
			calls++
			for i, how := range []vfs.Crash{vfs.Kill, {}, vfs.PowerLoss(1000*seed + uint64(calls))} {
				at := filepath.Join(left, fmt.Sprint(calls, "-", i))
				if err := disk.CrashClone(at, how); err != nil {
					t.Fatal(err)
				}
				again := NewWitness(at, vfs.OS(), time.Now)
				if _, err := again.Cosign(first, trusted); signed > 1 && !fault.Is(err, fault.Corrupt) {
					t.Errorf("before call %d: size %d was cosigned, and then an older one: %v", calls, signed, err)
				}
				if _, err := again.Cosign(second, trusted); err != nil && !fault.Is(err, fault.Conflict) {
					t.Errorf("before call %d: it does not continue: %v", calls, err)
				}
			}
		}
		disk.OnCall = func(vfs.Op) { check() }
		w := NewWitness(home, disk, time.Now)
		for _, one := range [][]byte{first, second} {
			got, err := w.Cosign(one, trusted)
			if err != nil {
				t.Fatal(err)
			}
			signed = got.Log.Size
		}
		check()
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGrowth_RoundTrips checks that a written request is read unchanged, and that nothing else is accepted.
func TestGrowth_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := format.Growth{Old: rapid.Int64Range(0, 1<<40).Draw(t, "old"), Checkpoint: []byte("o\n1\nAA==\n\n— o AA==\n")}
		for range rapid.IntRange(0, 63).Draw(t, "hashes") {
			g.Proof = append(g.Proof, format.Hash(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash")))
		}
		b := g.Text()
		back, err := format.ParseGrowth(b)
		if err != nil || !bytes.Equal(back.Text(), b) || back.Old != g.Old || len(back.Proof) != len(g.Proof) {
			t.Fatalf("%+v, %v", back, err)
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		if back, err = format.ParseGrowth(b); err == nil && !bytes.Equal(back.Text(), b) {
			t.Fatalf("%q is read as %q", b, back.Text())
		}
	})
}

func TestWitness_CosignsEmptyLog(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	trusted := []string{keysOf(t, l)[0].Key}
	w := NewWitness(t.TempDir(), vfs.OS(), time.Now)
	if got, err := w.Cosign(grown(t, l, 0), trusted); err != nil || got.Log.Size != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	appended(t, l, draft(boxA, 1))
	if got, err := w.Cosign(grown(t, l, 0), trusted); err != nil || got.Log.Size != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := l.Growth(t.Context(), 2); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}
