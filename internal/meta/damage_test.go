package meta

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// sample makes a closed database with some content and returns its path.
func sample(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(t.Context(), path))(t)
	rec := box(t, d, "web-1", "")
	for range 50 {
		snap(t, d, &rec, strings.Repeat("x", 200))
	}
	ok(t, d.Close())
	return path
}

// withKey copies the key of one database for another one.
func withKey(t testing.TB, from, to string) {
	t.Helper()
	b := must(os.ReadFile(filepath.Join(filepath.Dir(from), keyName)))(t)
	ok(t, os.WriteFile(filepath.Join(filepath.Dir(to), keyName), b, 0o600))
}

func TestOpen_RefusesForeignFiles(t *testing.T) {
	t.Parallel()
	sample := sample(t)
	good, err := os.ReadFile(sample)
	ok(t, err)
	pragma := func(set string) func(testing.TB, string) {
		return func(t testing.TB, path string) {
			db := must(sql.Open("sqlite", path))(t)
			defer db.Close()
			must(db.Exec("PRAGMA " + set))(t)
		}
	}
	flip := func(at int) func(testing.TB, string) {
		return func(t testing.TB, path string) {
			b := slices.Clone(good)
			b[at] ^= 0xff
			ok(t, os.WriteFile(path, b, 0o600))
		}
	}
	for _, c := range []struct {
		name   string
		damage func(testing.TB, string)
		kind   fault.Kind
		says   string
	}{
		{"a newer version", pragma("user_version=8"), fault.Version, "meta.db: 8; this build reads version 7"},
		{"a version that it is not", pragma("user_version=1"), fault.Corrupt, "its schema is not that of version 1"},
		{"no version", pragma("user_version=0"), fault.Version, "meta.db: 0; this build reads version 7"},
		{"another program's", pragma("application_id=7"), fault.Version, "not a Coppice database"},
		{"empty", func(t testing.TB, path string) { ok(t, os.Truncate(path, 0)) }, fault.Corrupt, "is empty"},
		{"cut in the header", func(t testing.TB, path string) { ok(t, os.Truncate(path, 50)) }, fault.Corrupt, "open"},
		{"cut in a page", func(t testing.TB, path string) { ok(t, os.Truncate(path, int64(len(good)-5000))) },
			fault.Corrupt, "open"},
		{"cut to a page", func(t testing.TB, path string) { ok(t, os.Truncate(path, 4096)) }, fault.Corrupt, "open"},
		{"text", func(t testing.TB, path string) {
			ok(t, os.WriteFile(path, []byte(strings.Repeat("hello\n", 1000)), 0o600))
		}, fault.Corrupt, "open"},
		{"a flipped magic", flip(3), fault.Corrupt, "open"},
		{"a flipped page type", flip(3 * 4096), fault.Corrupt, ""},
		{"zeroes in the middle", func(t testing.TB, path string) {
			b := slices.Clone(good)
			clear(b[4*4096 : 8*4096])
			ok(t, os.WriteFile(path, b, 0o600))
		}, fault.Corrupt, ""},
		{"a directory", func(t testing.TB, path string) {
			ok(t, os.Remove(path))
			ok(t, os.Mkdir(path, 0o700))
		}, fault.Internal, "open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "meta.db")
			ok(t, os.WriteFile(path, good, 0o600))
			withKey(t, sample, path)
			c.damage(t, path)
			before, _ := os.ReadFile(path)
			d, err := Open(t.Context(), path)
			if d != nil || !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v (%s); want %s with %q", err, fault.KindOf(err), c.kind, c.says)
			}
			if c.kind != fault.Internal && !strings.Contains(fault.HintOf(err), "COPPICE_HOME=DIR coppice") {
				t.Errorf("hint %q", fault.HintOf(err))
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("opening changed the file")
			}
		})
	}
}

// TestFlippedBits changes any byte: the result is an error, or something that the database could contain, never a
// panic or an endless loop.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	sample := sample(t)
	good := must(os.ReadFile(sample))(t)
	dir := t.TempDir()
	withKey(t, sample, filepath.Join(dir, "any.db"))
	n, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		b := slices.Clone(good)
		for range rapid.IntRange(1, 3).Draw(rt, "flips") {
			b[rapid.IntRange(0, len(b)-1).Draw(rt, "at")] ^= byte(rapid.IntRange(1, 255).Draw(rt, "mask"))
		}
		n++
		path := filepath.Join(dir, fmt.Sprint(n, ".db"))
		ok(t, os.WriteFile(path, b, 0o600))
		d, err := Open(t.Context(), path)
		if err == nil {
			var recs []Sandbox
			if recs, err = d.Sandboxes(t.Context()); err == nil && len(recs) > 0 {
				_, err = d.History(t.Context(), recs[0].ID)
				if _, lerr := d.Lineage(t.Context(), recs[0].Head); err == nil {
					err = lerr
				}
			}
			ok(t, d.Close())
		}
		if err != nil {
			refused++
			if k := fault.KindOf(err); k != fault.Corrupt && k != fault.Version {
				rt.Fatalf("%v (%s)", err, k)
			}
		}
		ok(t, os.Remove(path))
	})
	t.Logf("%d of %d were refused", refused, n)
}

// TestTornLog truncates the log at many places: the database then has the complete state after some transaction.
func TestTornLog(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(ctx, path))(t)
	defer d.Close()
	rec := box(t, d, "web-1", "")
	heads := []timeline.SnapshotID{rec.Head}
	for range 30 {
		snap(t, d, &rec, "x")
		heads = append(heads, rec.Head)
	}
	// Copies of open files are what a crash of the machine may leave.
	main, log := must(os.ReadFile(path))(t), must(os.ReadFile(path+"-wal"))(t)
	dir := t.TempDir()
	last := -1
	for cut := 0; cut <= len(log); cut += 59951 {
		torn := filepath.Join(dir, fmt.Sprint(cut), "meta.db")
		ok(t, os.Mkdir(filepath.Dir(torn), 0o700))
		withKey(t, path, torn)
		ok(t, os.WriteFile(torn, main, 0o600))
		ok(t, os.WriteFile(torn+"-wal", append(slices.Clone(log[:cut]), bytes.Repeat([]byte{0xa5}, 100)...), 0o600))
		d := must(Open(ctx, torn))(t)
		recs := must(d.Sandboxes(ctx))(t)
		at := -1
		if len(recs) == 1 {
			at = slices.Index(heads, recs[0].Head)
			if got := stack(t, d, recs[0].Head); at < 0 || len(got) != at {
				t.Fatalf("cut at %d: %d layers at head %d", cut, len(got), at)
			}
		}
		if at < last {
			t.Fatalf("cut at %d: head %d after head %d", cut, at, last)
		}
		last = at
		ok(t, d.Check(ctx))
		ok(t, d.Close())
	}
	if last < len(heads)-2 {
		t.Errorf("with nearly the whole log the head is %d of %d", last, len(heads)-1)
	}
}

func TestOpen_ReplacesIncompleteDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "meta.db")
	ok(t, os.WriteFile(path+".new", []byte("torn"), 0o600))
	d := must(Open(t.Context(), path))(t)
	box(t, d, "a", "")
	ok(t, d.Close())
	entries := must(os.ReadDir(filepath.Dir(path)))(t)
	if len(entries) != 2 {
		t.Errorf("left: %v", entries)
	}
	for _, e := range entries {
		if st := must(e.Info())(t); st.Mode().Perm()&0o077 != 0 {
			t.Errorf("mode %v of %s", st.Mode(), e.Name())
		}
	}
}

func TestNoDirectory(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), filepath.Join(t.TempDir(), "none", "meta.db"))
	wantFault(t, err, fault.NotFound, "open")
}

// TestOpen_IgnoresSchemaComments matters because a database has the comments of the schema
// that it was created with.
func TestOpen_IgnoresSchemaComments(t *testing.T) {
	t.Parallel()
	edit := func(t *testing.T, what string) error {
		t.Helper()
		path := sample(t)
		db := must(sql.Open("sqlite", path))(t)
		db.SetMaxOpenConns(1)
		must(db.Exec("PRAGMA writable_schema=1"))(t)
		n := must(must(db.Exec("UPDATE sqlite_schema SET sql=" + what + " WHERE name='snapshots'"))(t).RowsAffected())(t)
		if n != 1 {
			t.Fatalf("%d tables were edited", n)
		}
		ok(t, db.Close())
		d, err := Open(t.Context(), path)
		if err == nil {
			ok(t, d.Close())
		}
		return err
	}
	ok(t, edit(t, "replace(sql, '-- why', '-- why, and')"))
	ok(t, edit(t, "replace(sql, 'TEXT NOT NULL,    --', 'TEXT  NOT NULL, -- (short)')"))
	if err := edit(t, "replace(sql, 'message  TEXT NOT NULL', 'message  TEXT')"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a changed column: %v", err)
	}
}
