package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// TestLateWrites_MatchImmediateWrites checks that late writes, in whatever order they are placed, produce the same
// files as immediate writes.
func TestLateWrites_MatchImmediateWrites(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q late
		at, got, want := map[string]int64{}, map[string][]byte{}, map[string][]byte{}
		apply := func() {
			w := q.writes[0]
			if int64(len(got[w.file])) < w.offset {
				t.Fatalf("%s is written at %d, and ends at %d", w.file, w.offset, len(got[w.file]))
			}
			got[w.file] = append(got[w.file][:w.offset:w.offset], w.bytes...)
			q.done()
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(q.writes) > 0 && rapid.Bool().Draw(t, "place") {
				apply()
				continue
			}
			w := write{file: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "file"),
				bytes: rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(t, "bytes")}
			w.offset = at[w.file]
			at[w.file] += int64(len(w.bytes))
			want[w.file] = append(want[w.file], w.bytes...)
			q.add(w)
			if !q.has(w.file) {
				t.Fatal("it is not late")
			}
		}
		for len(q.writes) > 0 {
			apply()
		}
		for file := range want {
			if q.has(file) || !bytes.Equal(got[file], want[file]) {
				t.Fatalf("%s: %x, want %x", file, got[file], want[file])
			}
		}
	})
}

// exitWith returns the record of the exit of a command, which names captures.
func exitWith(id format.Sandbox, i int, names ...string) Draft {
	d := draft(id, i)
	exit := &format.Exit{Exec: fmt.Sprint(i)}
	for _, name := range names {
		exit.Output = append(exit.Output, format.Output{Stream: "stdout", Blob: name})
	}
	d.Body = exit
	return d
}

// unplaced is a file system on which nothing can be created where records are read.
type unplaced struct {
	full
}

func (u *unplaced) Mkdir(dir int, name string, mode uint32) error {
	if u.is.Load() {
		return unix.ENOSPC
	}
	return u.FS.Mkdir(dir, name, mode)
}

// TestLateCapture_SharesFlushOfRecord checks that a capture is made durable by the flush of the record that names it.
// From then on it can be read and exported, also before there is space to place it, and after a crash.
func TestLateCapture_SharesFlushOfRecord(t *testing.T) {
	t.Parallel()
	dir, disk := t.TempDir(), &unplaced{full{FS: vfs.OS()}}
	counted := &vfs.Faulty{FS: disk}
	l, _ := opened(t, dir, Options{FS: counted})
	appended(t, l, draft(boxA, 0))
	if _, err := l.Last(t.Context(), boxA); err != nil {
		t.Fatal(err)
	}
	disk.is.Store(true)
	counted.FailAt(0, 0, false)
	content := bytes.Repeat([]byte("output\x00\n"), 1000)
	name, err := l.WriteBlob(boxA, content)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.ReadBlob(boxA, name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("before it is named: %d bytes, %v", len(got), err)
	}
	appended(t, l, exitWith(boxA, 0, name))
	if n := counted.Ops(vfs.OpSync); n != 1 {
		t.Errorf("%d flushes, want 1", n)
	}
	if got, err := l.ReadBlob(boxA, name); err != nil || !bytes.Equal(got, content) {
		t.Errorf("not placed: %d bytes, %v", len(got), err)
	}
	crashed := copied(t, dir)
	again, report := opened(t, crashed, Options{})
	if got, err := again.ReadBlob(boxA, name); err != nil || !bytes.Equal(got, content) || report.Mended != 2 {
		t.Errorf("after a crash: %d bytes, %v, %+v", len(got), err, report)
	}
	disk.is.Store(false)
	v, err := checked(bundled(t, l, boxA), format.Demands{})
	if err != nil || v.Blobs != 1 || len(v.Absent) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, captureFile(boxA, name))); err != nil || !bytes.Equal(got, content) {
		t.Errorf("placed: %d bytes, %v", len(got), err)
	}
	if _, held := l.captures.get(captureFile(boxA, name)); held {
		t.Error("the capture is held after it was placed")
	}
}

// TestLateCapture_WritesExcessAtOnce checks that captures that are too large, or too many, to be stored
// with their record are written at once. After a crash only those that no record names are lost.
func TestLateCapture_WritesExcessAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	var names []string
	for i := range 8 {
		name, err := l.WriteBlob(boxA, bytes.Repeat([]byte{byte(i)}, maxRiding+i%2))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
		if _, err := os.Lstat(filepath.Join(dir, captureFile(boxA, name))); (err == nil) != (i%2 == 1) {
			t.Errorf("capture %d: %v", i, err)
		}
	}
	over, err := l.WriteBlob(boxA, []byte("one more"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, captureFile(boxA, over))); err != nil {
		t.Errorf("more than may wait: %v", err)
	}
	lost, err := openCopy(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if _, err := lost.ReadBlob(boxA, name); fault.Is(err, fault.NotFound) != (i%2 == 0) {
			t.Errorf("capture %d after a crash: %v", i, err)
		}
	}
	appended(t, l, exitWith(boxA, 1, append(names, over)...))
	if again, err := openCopy(t, dir); err != nil {
		t.Fatal(err)
	} else if v, err := checked(bundled(t, again, boxA), format.Demands{}); err != nil || v.Blobs != 9 {
		t.Errorf("%+v, %v", v, err)
	}
}

// openCopy opens a copy of a ledger as a crash leaves it.
func openCopy(t *testing.T, dir string) (*Ledger, error) {
	t.Helper()
	l, _, err := Open(copied(t, dir), Options{})
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

// TestLateCapture_IsRemovedWithLedger covers a capture that waits to be placed when the ledger
// of its sandbox is removed.
func TestLateCapture_IsRemovedWithLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 0), draft(boxB, 0))
	if _, err := l.WriteBlob(boxA, []byte("output")); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), boxA); err != nil {
		t.Fatal(err)
	}
	name, err := l.WriteBlob(boxA, []byte("more of it"))
	if err != nil {
		t.Fatal(err)
	}
	appended(t, l, draft(boxB, 1))
	if _, err := l.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, dirBlobs, string(boxA))); !errors.Is(err, os.ErrNotExist) {
		t.Error("captures of a removed ledger still exist")
	}
	if _, err := l.ReadBlob(boxA, name); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// TestLateRecords_AreReadByOpenLedger checks that the process that has the ledger open reads records that are not
// placed yet, and that every process can verify them.
func TestLateRecords_AreReadByOpenLedger(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{SegmentBytes: 1000})
	for i := range 30 {
		appended(t, l, draft(boxA, i))
		var got []string
		for r, err := range l.Read(t.Context(), boxA, Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.Body.(*format.Exec).Exec)
		}
		if len(got) != i+1 || !slices.Contains(got, fmt.Sprint(i)) {
			t.Fatalf("after %d: %q", i, got)
		}
		verified(t, l.Reader, boxA, int64(i+1))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range l.Read(t.Context(), boxA, Filter{}) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 30 {
		t.Errorf("closed: %d of 30", n)
	}
}

// BenchmarkAppendNewChains begins the chains of a hundred sandboxes in one append, as forks do.
func BenchmarkAppendNewChains(b *testing.B) {
	l, _ := opened(b, b.TempDir(), Options{})
	for n := 0; b.Loop(); n++ {
		var ds []Draft
		for i := range 100 {
			ds = append(ds, draft(format.Sandbox(fmt.Sprintf("%012x", n*100+i)), i))
		}
		if _, err := l.Append(context.Background(), ds...); err != nil {
			b.Fatal(err)
		}
	}
}
