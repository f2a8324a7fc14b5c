package meta

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

func TestTokens_ArePersisted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(t.Context(), path))(t)
	ctx := t.Context()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := Token{ID: "00000001", Name: "all", Scope: "admin", Created: now, Hash: []byte("h1")}
	some := Token{ID: "00000002", Name: "some", Scope: "read", Sandboxes: []string{"a"}, Created: now.Add(time.Second),
		Expires: now.Add(time.Hour), Hash: []byte("h2")}
	none := Token{ID: "00000003", Name: "none", Scope: "read", Sandboxes: []string{}, Created: now.Add(2 * time.Second),
		Hash: []byte("h3")}
	for _, tok := range []Token{all, some, none} {
		ok(t, d.AddToken(ctx, tok))
	}
	if err := d.AddToken(ctx, all); !fault.Is(err, fault.Exists) {
		t.Errorf("the same id again: %v", err)
	}
	ok(t, d.TokenUsed(ctx, some.ID, now))
	ok(t, d.TokenUsed(ctx, some.ID, now.Add(-time.Hour))) // late
	ok(t, d.TokenUsed(ctx, "nothing", now))
	some.Used = now
	for _, tok := range []Token{all, some, none} {
		ok(t, d.WidenToken(ctx, tok.ID, []string{"b", "a"}))
	}
	ok(t, d.WidenToken(ctx, "nothing", []string{"b"}))
	some.Sandboxes, none.Sandboxes = []string{"a", "b"}, []string{"b", "a"}
	ok(t, d.Close())

	d = must(Open(t.Context(), path))(t)
	defer d.Close()
	if got := must(d.Tokens(ctx))(t); !reflect.DeepEqual(got, []Token{all, some, none}) {
		t.Errorf("got %+v", got)
	}
	if got := must(d.Token(ctx, some.ID))(t); !reflect.DeepEqual(got, some) {
		t.Errorf("got %+v, want %+v", got, some)
	}
	ok(t, d.RemoveToken(ctx, some.ID))
	if err := d.RemoveToken(ctx, some.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := d.Token(ctx, some.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("removed, and found: %v", err)
	}
	ok(t, d.Check(ctx))
}

func TestToken_DamagedScopeIsCorrupt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "meta.db")
	d := must(Open(t.Context(), path))(t)
	ok(t, d.AddToken(t.Context(), Token{ID: "00000001", Scope: "read", Sandboxes: []string{"a"}, Hash: []byte("h")}))
	ok(t, d.Close())
	db := must(sql.Open("sqlite", path))(t)
	must(db.Exec("UPDATE tokens SET sandboxes='[\"a'"))(t)
	ok(t, db.Close())
	d = must(Open(t.Context(), path))(t)
	defer d.Close()
	if got, err := d.Token(t.Context(), "00000001"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("got %+v %v", got, err)
	}
}

// TestOpen_MigratesOldVersions opens a database of each earlier version: its content can be read, and the file then
// has the current version.
func TestOpen_MigratesOldVersions(t *testing.T) {
	t.Parallel()
	const six = "DROP TABLE grants; DROP TABLE tickets"
	const five = six + "; DROP TABLE redos"
	const four = five + "; DROP TABLE memories"
	for version, drop := range map[int]string{1: four + "; DROP TABLE tokens; DROP TABLE answers; DROP TABLE policies",
		2: four + "; DROP TABLE policies", 4: four, 5: five, 6: six} {
		path := sample(t)
		redo := redoable(t, path)
		older := func(more string) {
			db := must(sql.Open("sqlite", path))(t)
			must(db.Exec(fmt.Sprintf("%s; PRAGMA user_version=%d; %s", drop, version, more)))(t)
			ok(t, db.Close())
		}
		older("")
		for range 2 {
			d := must(Open(t.Context(), path))(t)
			recs := must(d.Sandboxes(t.Context()))(t)
			if len(recs) != 1 || recs[0].Policy != "" {
				t.Fatalf("version %d: %d sandboxes", version, len(recs))
			}
			if held := must(d.Held(t.Context(), recs[0].ID))(t); !held[redo] || len(held) != 3 {
				t.Errorf("version %d: held %v, want only head, mount and %s, which can be redone", version, held, redo)
			}
			must(d.Tokens(t.Context()))(t)
			must(d.Answer(t.Context(), "a"))(t)
			ok(t, d.Check(t.Context()))
			ok(t, d.Close())
		}
		older("CREATE TABLE tickets (id TEXT)")
		if _, err := Open(t.Context(), path); !fault.Is(err, fault.Corrupt) ||
			!strings.Contains(err.Error(), fmt.Sprintf("version %d", version)) {
			t.Errorf("version %d with another table of redos: %v", version, err)
		}
	}
}

// redoable adds a snapshot that the only sandbox of a database can redo to, and returns it.
func redoable(t testing.TB, path string) (redo timeline.SnapshotID) {
	t.Helper()
	d := must(Open(t.Context(), path))(t)
	rec := must(d.Sandboxes(t.Context()))(t)[0]
	snap(t, d, &rec, "to redo")
	redo = rec.Head
	snap(t, d, &rec, "head")
	ok(t, d.UpdateSandbox(t.Context(), rec.ID,
		func(r *Sandbox) error { r.Redo = []timeline.SnapshotID{redo}; return nil }))
	ok(t, d.Close())
	return redo
}
