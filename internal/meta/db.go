// Package meta is the database of sandboxes, snapshots, routes and layers: one
// SQLite file in WAL mode. Every change is one transaction; what was committed
// survives the death of every process (synchronous=NORMAL: after a power loss
// the newest transactions may be missing, never half there). Only engine imports
// it; it imports timeline, fault and client/wire.
package meta

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coppice-dev/coppice/internal/fault"
)

// DB is an open database. All methods are safe for concurrent use and give
// faults.
type DB struct {
	w, r *sql.DB // one writing connection, several reading ones

	mu    sync.Mutex
	stmts map[stmtKey]*sql.Stmt // guarded by mu
}

type stmtKey struct {
	db    *sql.DB
	query string
}

// Open opens or makes the database at path. The errors are Version for one of
// another build, Corrupt for a damaged one, ReadOnly and NoSpace.
func Open(ctx context.Context, path string) (_ *DB, err error) {
	dsn := func(mode string, more string) string {
		return "file:" + (&url.URL{Path: path}).EscapedPath() + "?mode=" + mode +
			"&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)" + more
	}
	d := &DB{stmts: map[stmtKey]*sql.Stmt{}}
	if d.w, err = sql.Open("sqlite", dsn("rwc", "&_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")); err != nil {
		return nil, dbErr(err, "open %s", path)
	}
	d.w.SetMaxOpenConns(1)
	if d.r, err = sql.Open("sqlite", dsn("rw", "&_pragma=query_only(1)")); err != nil {
		return nil, errors.Join(dbErr(err, "open %s", path), d.w.Close())
	}
	d.r.SetMaxOpenConns(4)
	d.r.SetMaxIdleConns(4)
	if err := d.migrate(ctx, path); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *DB) migrate(ctx context.Context, path string) error {
	var v int
	if err := d.w.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil {
		return dbErr(err, "read %s", path)
	}
	switch v {
	case schemaVersion:
		return nil
	case 0:
	default:
		return fault.New(fault.Version, "%s has version %d; this build reads version %d", path, v, schemaVersion).
			WithHint("use the newer coppice that made it, or another home: COPPICE_HOME=DIR coppice ...")
	}
	return d.tx(ctx, func(tx *tx) error {
		tx.exec(schema)
		tx.exec(fmt.Sprintf("PRAGMA user_version=%d", schemaVersion))
		return nil
	})
}

// Close closes the database.
func (d *DB) Close() error {
	d.mu.Lock()
	for _, s := range d.stmts {
		s.Close() //nolint:errcheck // closing a prepared statement loses nothing
	}
	clear(d.stmts)
	d.mu.Unlock()
	return errors.Join(d.r.Close(), d.w.Close())
}

// stmt prepares a query once.
func (d *DB) stmt(ctx context.Context, db *sql.DB, query string) (*sql.Stmt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.stmts[stmtKey{db, query}]; s != nil {
		return s, nil
	}
	s, err := db.PrepareContext(context.WithoutCancel(ctx), query)
	if err == nil {
		d.stmts[stmtKey{db, query}] = s
	}
	return s, err
}

// rows runs a reading query and calls scan for each row.
func (d *DB) rows(ctx context.Context, query string, scan func(scanner) error, args ...any) error {
	s, err := d.stmt(ctx, d.r, query)
	if err != nil {
		return dbErr(err, "read the database")
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return dbErr(err, "read the database")
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what matters
	for rows.Next() {
		if err := scan(rows); err != nil {
			return dbErr(err, "read the database")
		}
	}
	return dbErr(rows.Err(), "read the database")
}

type scanner interface{ Scan(...any) error }

// tx is a transaction that remembers its first error, so that its steps read one
// after the other.
type tx struct {
	*sql.Tx
	d   *DB
	ctx context.Context //nolint:containedctx // lives as long as one call of DB.tx
	err error
}

func (t *tx) exec(query string, args ...any) int64 {
	if t.err != nil {
		return 0
	}
	res, err := t.ExecContext(t.ctx, query, args...)
	if err != nil {
		t.err = err
		return 0
	}
	n, err := res.RowsAffected()
	if err != nil {
		t.err = err
	}
	return n
}

// each calls scan for each row of a query.
func (t *tx) each(query string, scan func(scanner) error, args ...any) {
	if t.err != nil {
		return
	}
	rows, err := t.QueryContext(t.ctx, query, args...)
	if err != nil {
		t.err = err
		return
	}
	defer rows.Close() //nolint:errcheck // rows.Err says what matters
	for rows.Next() {
		if t.err = scan(rows); t.err != nil {
			return
		}
	}
	t.err = rows.Err()
}

// tx runs fn in a writing transaction: all of it happens, or nothing.
func (d *DB) tx(ctx context.Context, fn func(*tx) error) (err error) {
	raw, err := d.w.BeginTx(ctx, nil)
	if err != nil {
		return dbErr(err, "write the database")
	}
	t := &tx{Tx: raw, d: d, ctx: ctx}
	if err = fn(t); err == nil {
		err = t.err
	}
	if err != nil {
		if rerr := raw.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = errors.Join(err, rerr)
		}
		return dbErr(err, "write the database")
	}
	return dbErr(raw.Commit(), "write the database")
}

// dbErr gives an error of SQLite the kind that people need; faults pass.
func dbErr(err error, format string, args ...any) error {
	var f *fault.Error
	if err == nil || errors.As(err, &f) {
		return err
	}
	f = fault.New(fault.KindOf(err), format, args...).Because(err)
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return f
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		f.Kind = fault.NoSpace
		f.Hint = "free some space, for example with: coppice gc"
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		f.Kind = fault.ReadOnly
		f.Hint = "give coppice a home that it can write: COPPICE_HOME=DIR coppice ..."
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		f.Kind = fault.Corrupt
		f.Hint = "the layers are untouched; restore the database from a backup, or begin anew: COPPICE_HOME=DIR coppice ..."
	case sqlite3.SQLITE_IOERR:
		f.Kind = fault.NoSpace
		f.Hint = "the disk refused to read or write; look at df and dmesg"
	}
	return f
}

// Setting reads a setting; "" when it was never set.
func (d *DB) Setting(ctx context.Context, key string) (v string, err error) {
	err = d.rows(ctx, "SELECT value FROM settings WHERE key=?", func(s scanner) error { return s.Scan(&v) }, key)
	return v, err
}

// SetSetting writes a setting.
func (d *DB) SetSetting(ctx context.Context, key, value string) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec("INSERT INTO settings VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", key, value)
		return nil
	})
}

// Intent is something that is being done to the file system.
type Intent struct {
	ID   int64
	Kind string
	Body json.RawMessage
}

// Decode reads the intent's body into v.
func (i Intent) Decode(v any) error {
	if err := json.Unmarshal(i.Body, v); err != nil {
		return fault.New(fault.Corrupt, "intent %d (%s)", i.ID, i.Kind).Because(err)
	}
	return nil
}

// BeginIntent records an intent before it is acted on.
func (d *DB) BeginIntent(ctx context.Context, kind string, body any) (id int64, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("intent %s: %w", kind, err)
	}
	err = d.tx(ctx, func(t *tx) error {
		t.each("INSERT INTO intents(kind,body) VALUES(?,?) RETURNING id", func(s scanner) error { return s.Scan(&id) }, kind, string(b))
		return nil
	})
	return id, err
}

// EndIntent forgets an intent: it was completed or undone.
func (d *DB) EndIntent(ctx context.Context, id int64) error {
	return d.tx(ctx, func(t *tx) error { t.exec("DELETE FROM intents WHERE id=?", id); return nil })
}

// Intents lists what was begun and not ended, oldest first.
func (d *DB) Intents(ctx context.Context) (out []Intent, err error) {
	err = d.rows(ctx, "SELECT id,kind,body FROM intents ORDER BY id", func(s scanner) error {
		var i Intent
		var body string
		if err := s.Scan(&i.ID, &i.Kind, &body); err != nil {
			return err
		}
		i.Body = json.RawMessage(body)
		out = append(out, i)
		return nil
	})
	return out, err
}
