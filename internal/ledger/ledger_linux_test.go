package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

const (
	boxA format.Sandbox = "00000000000a"
	boxB format.Sandbox = "00000000000b"
)

func opened(t testing.TB, dir string, o Options) (*Ledger, Opened) {
	t.Helper()
	l, report, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, report
}

func draft(id format.Sandbox, i int) Draft {
	return Draft{Sandbox: id, Name: "web", Observer: format.ByKeeper, Policy: "sha256:00", Tier: "process",
		Body: &format.Exec{Exec: fmt.Sprint(i), Args: []string{"make", "-j2", fmt.Sprint("target-", i)},
			Env: []string{"HOME", "PATH"}}}
}

func appended(t testing.TB, l *Ledger, drafts ...Draft) []format.Record {
	t.Helper()
	rs, err := l.Append(t.Context(), drafts...)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// reader is a Reader, or a Ledger, which also returns late records.
type reader interface {
	Read(ctx context.Context, id format.Sandbox, f Filter) iter.Seq2[*format.Record, error]
}

// execs returns the ids of the commands of a sandbox's records.
func execs(t testing.TB, r reader, id format.Sandbox, f Filter) (all []string) {
	t.Helper()
	for rec, err := range r.Read(t.Context(), id, f) {
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := rec.Body.(*format.Exec); ok {
			all = append(all, e.Exec)
		}
	}
	return all
}

func verified(t testing.TB, r Reader, id format.Sandbox, want int64) {
	t.Helper()
	p, err := r.Verify(context.Background(), id, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.Records != want {
		t.Fatalf("%d records of %s, want %d", p.Records, id, want)
	}
}

func bundled(t testing.TB, l *Ledger, id format.Sandbox, old ...int64) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := l.Export(context.Background(), id, &b, old...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func checked(b []byte, d format.Demands) (*format.Verified, error) {
	return format.VerifyBundle(context.Background(), bytes.NewReader(b), int64(len(b)), d)
}

func TestLedger_AppendReadVerifyExport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, report := opened(t, dir, Options{SegmentBytes: 1500})
	if !report.New {
		t.Error("not new")
	}
	r := NewReader(dir)
	for i := range 40 {
		id := boxA
		if i%3 == 0 {
			id = boxB
		}
		rs := appended(t, l, draft(id, i))
		if rs[0].Leaf != int64(i) {
			t.Fatalf("leaf %d of record %d", rs[0].Leaf, i)
		}
		verified(t, r, boxA, int64(i+1)-int64(i/3+1))
	}
	if got := execs(t, r, boxB, Filter{From: 5, Limit: 3}); strings.Join(got, " ") != "12 15 18" {
		t.Errorf("%q", got)
	}
	if got := execs(t, r, boxB, Filter{Kinds: []format.Kind{format.KindExit}}); len(got) != 0 {
		t.Errorf("%q", got)
	}
	early, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	appended(t, l, draft(boxA, 40), draft(boxB, 41))
	if p, err := r.Verify(t.Context(), boxA, nil, early); err != nil || !p.Grown {
		t.Errorf("%+v, %v", p, err)
	}
	keys, err := r.Keys()
	if err != nil {
		t.Fatal(err)
	}
	v, err := checked(bundled(t, l, boxB, 40), format.Demands{Keys: []string{keys[0].Key}, Old: early})
	if err != nil || v.Records != 15 || !v.Grown || !v.Trusted {
		t.Errorf("%+v, %v", v, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, report := opened(t, dir, Options{})
	if report.New || report.Mended > 0 || len(report.Aside) > 0 {
		t.Errorf("%+v", report)
	}
	appended(t, again, draft(boxA, 42))
	verified(t, r, boxA, 28)
	if _, _, err := Open(dir, Options{}); !fault.Is(err, fault.Conflict) {
		t.Errorf("opened twice: %v", err)
	}
}

func TestAppend_ConcurrentCallersShareChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{SegmentBytes: 8 << 10, IntakeBytes: 20 << 10})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				id := []format.Sandbox{boxA, boxB}[(g+i)%2]
				if _, err := l.Append(context.Background(), draft(id, i), draft(boxA, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if _, err := NewReader(dir).Verify(context.Background(), boxA, nil, nil); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	verified(t, l.Reader, boxA, 600)
	verified(t, l.Reader, boxB, 200)
}

func TestFollow_CrossesSegments(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{SegmentBytes: 1000})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		for i := range 60 {
			if _, err := l.Append(context.Background(), draft(boxA, i)); err != nil {
				t.Error(err)
			}
		}
	}()
	next := 0
	for rec, err := range l.Follow(ctx, boxA, Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.Body.(*format.Exec).Exec; got != fmt.Sprint(next) {
			t.Fatalf("%s, want %d", got, next)
		}
		if next++; next == 60 {
			break
		}
	}
	if next != 60 {
		t.Errorf("%d of 60", next)
	}
}

func TestAppend_RefusesInvalidDraft(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{})
	for name, d := range map[string]Draft{
		"no body":     {Sandbox: boxA, Observer: format.ByKeeper},
		"no sandbox":  {Sandbox: "../../etc", Observer: format.ByKeeper, Body: &format.Stop{}},
		"no observer": {Sandbox: boxA, Body: &format.Stop{}},
		"too long": {Sandbox: boxA, Observer: format.ByKeeper,
			Body: &format.Stop{Reason: strings.Repeat("x", format.MaxLine)}},
	} {
		if _, err := l.Append(t.Context(), draft(boxA, 1), d); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	appended(t, l,
		Draft{Sandbox: boxA, Name: "a\xffb\u2028\\ufffd", Observer: format.ByKeeper,
			Body: &format.Stop{Reason: "\x00\x1b<&>\b"}})
	verified(t, l.Reader, boxA, 1)
}

func TestArchivedSegments_AreReadAndVerified(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{SegmentBytes: 1500})
	for i := range 30 {
		appended(t, l, draft(boxA, i))
	}
	n, err := l.Archive(t.Context(), boxA, "web", time.Now().Add(time.Hour))
	if err != nil || n < 20 {
		t.Fatalf("%d, %v", n, err)
	}
	if got := execs(t, l, boxA, Filter{}); len(got) != 30 {
		t.Errorf("%d of 30", len(got))
	}
	if got := execs(t, l, boxA, Filter{From: 7, Limit: 1}); len(got) != 1 || got[0] != "6" {
		t.Errorf("%q", got)
	}
	verified(t, l.Reader, boxA, 31)
	if _, err := checked(bundled(t, l, boxA), format.Demands{}); err != nil {
		t.Error(err)
	}
	gz, _ := filepath.Glob(filepath.Join(dir, "sandbox/*/*.gz"))
	if len(gz) < 3 {
		t.Fatalf("%q", gz)
	}
	if err := os.Truncate(gz[1], 100); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Verify(t.Context(), boxA, nil, nil); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a torn archive: %v", err)
	}
}

func TestLedgerRemove_IsRecordedAndRestVerifies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	for i := range 9 {
		appended(t, l, draft(boxA, i), draft(boxB, i))
	}
	if _, err := l.WriteBlob(boxA, []byte("output")); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), boxA); err != nil {
		t.Fatal(err)
	}
	verified(t, l.Reader, boxB, 9)
	verified(t, l.Reader, format.Host, 1)
	for _, name := range []string{"sandbox", "blobs"} {
		if _, err := os.Lstat(filepath.Join(dir, name, string(boxA))); err == nil {
			t.Errorf("%s still exists", name)
		}
	}
	if _, err := l.Append(t.Context(), draft(boxA, 9)); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if _, err := l.Verify(t.Context(), boxA, nil, nil); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestRotateKey_OldKeyVerifiesNewRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 1))
	old, err := l.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, _ := l.Keys()
	for range 2 {
		if err := l.RotateKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		appended(t, l, draft(boxA, 2))
	}
	verified(t, l.Reader, format.Host, 2)
	if _, err := l.Verify(t.Context(), boxA, []string{keys[0].Key}, old); err != nil {
		t.Error(err)
	}
	b := bundled(t, l, boxA, 1)
	if v, err := checked(b, format.Demands{Keys: []string{keys[0].Key}, Old: old}); err != nil || v.Key == keys[0].Key {
		t.Errorf("%+v, %v", v, err)
	}
	other, _ := opened(t, t.TempDir(), Options{})
	appended(t, other, draft(boxA, 1))
	if _, err := checked(bundled(t, other, boxA),
		format.Demands{Keys: []string{keys[0].Key}}); !fault.Is(err, fault.Denied) {
		t.Errorf("a stranger's key: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	opened(t, dir, Options{})
}

func TestLedgerVerify_NamesFirstBadRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	for i := range 20 {
		appended(t, l, draft(boxA, i), draft(boxB, i))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, segment(boxA, 1))
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	at := func(i int) []byte { return lines[i-1] }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for what, c := range map[string]struct {
		content []byte
		seq     int64
	}{
		"changed":   {bytes.Replace(whole, []byte("target-6"), []byte("target-x"), 1), 7},
		"dropped":   {join(whole[:bytes.Index(whole, at(7))], join(lines[7:]...)), 7},
		"doubled":   {join(join(lines[:7]...), at(7), join(lines[7:]...)), 8},
		"last gone": {join(lines[:19]...), 20},
		"all gone":  {nil, 1},
		"torn":      {whole[:len(whole)-3], 20},
		"first":     {bytes.Replace(whole, []byte("target-0"), []byte("target-x"), 1), 1},
		"last":      {bytes.Replace(whole, []byte("target-19"), []byte("target-xx"), 1), 20},
		"added":     {join(whole, at(20)), 21},
	} {
		if err := os.WriteFile(name, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := l.Verify(t.Context(), boxA, nil, nil)
		var m *format.Misfit
		if !errors.As(err, &m) || m.Seq != c.seq || !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v, want record %d", what, err, c.seq)
		}
		verified(t, l.Reader, boxB, 20)
	}
	if err := os.WriteFile(name, whole[:len(whole)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	again, _ := opened(t, dir, Options{})
	if _, err := again.Append(t.Context(), draft(boxA, 20)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a damaged chain was appended to: %v", err)
	}
	appended(t, again, draft(boxB, 20))
}

func TestLedger_RefusesLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, _ := opened(t, dir, Options{})
	appended(t, l, draft(boxA, 0))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, segment(boxA, 1))
	if err := os.Rename(name, name+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(name+".moved", name); err != nil {
		t.Fatal(err)
	}
	if _, err := NewReader(dir).Verify(t.Context(), boxA, nil, nil); err == nil {
		t.Error("a link was followed")
	}
}

// TestAfter_ReturnsNewerRecords checks that After finds the records of all sandboxes from any position of the log on,
// across segments.
func TestAfter_ReturnsNewerRecords(t *testing.T) {
	t.Parallel()
	l, _ := opened(t, t.TempDir(), Options{SegmentBytes: 1200})
	const n = 40
	for i := range n {
		appended(t, l, draft([]format.Sandbox{boxA, boxB, boxA}[i%3], i))
	}
	if size, err := l.Size(t.Context()); err != nil || size != n {
		t.Fatalf("%d leaves, %v", size, err)
	}
	for leaf := range int64(n + 1) {
		seen := map[int64]bool{}
		for rec, err := range l.After(t.Context(), leaf) {
			if err != nil {
				t.Fatal(err)
			}
			seen[rec.Leaf] = true
		}
		for i := range int64(n) {
			if seen[i] != (i >= leaf) {
				t.Fatalf("from %d on: record %d: %v", leaf, i, seen[i])
			}
		}
	}
}
