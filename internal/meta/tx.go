package meta

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coppice-dev/coppice/internal/fault"
)

type scanner interface{ Scan(...any) error }

// read gives the prepared form of a reading query.
func (d *DB) read(ctx context.Context, query string) (*sql.Stmt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.reads[query]; s != nil {
		return s, nil
	}
	s, err := d.r.PrepareContext(context.WithoutCancel(ctx), query)
	if err == nil {
		d.reads[query] = s
	}
	return s, err
}

// rows runs a reading query and calls scan for each row.
func (d *DB) rows(ctx context.Context, query string, scan func(scanner) error, args ...any) error {
	s, err := d.read(ctx, query)
	if err != nil {
		return d.fault(err, "read the database")
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return d.fault(err, "read the database")
	}
	return d.fault(scanAll(rows, scan), "read the database")
}

func scanAll(rows *sql.Rows, scan func(scanner) error) error {
	defer rows.Close() //nolint:errcheck // rows.Err says what matters
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// view is several reads of one state of the database. It remembers its first
// error, so that its steps read one after the other.
type view struct {
	tx  *sql.Tx
	d   *DB
	ctx context.Context //nolint:containedctx // lives as long as one call of DB.view
	err error
}

// each calls scan for each row of a query.
func (v *view) each(query string, scan func(scanner) error, args ...any) {
	if v.err != nil {
		return
	}
	s, err := v.d.read(v.ctx, query)
	if err != nil {
		v.err = err
		return
	}
	rows, err := v.tx.StmtContext(v.ctx, s).QueryContext(v.ctx, args...)
	if err != nil {
		v.err = err
		return
	}
	v.err = scanAll(rows, scan)
}

// view runs fn on one state of the database.
func (d *DB) view(ctx context.Context, fn func(*view)) error {
	raw, err := d.r.BeginTx(ctx, nil)
	if err != nil {
		return d.fault(err, "read the database")
	}
	v := &view{tx: raw, d: d, ctx: ctx}
	fn(v)
	if err := raw.Rollback(); v.err == nil && !errors.Is(err, sql.ErrTxDone) {
		v.err = err
	}
	return d.fault(v.err, "read the database")
}

// tx is a change. It remembers its first error, so that its steps read one after
// the other.
type tx struct {
	d   *DB
	ctx context.Context //nolint:containedctx // lives as long as one call of DB.tx
	err error
}

// stmt gives the prepared form of a statement of the writing connection.
func (t *tx) stmt(query string) *sql.Stmt {
	s := t.d.wrote[query]
	if s == nil && t.err == nil {
		if s, t.err = t.d.conn.PrepareContext(t.ctx, query); t.err == nil {
			t.d.wrote[query] = s
		}
	}
	return s
}

// exec runs a statement and gives how many rows it changed.
func (t *tx) exec(query string, args ...any) int64 {
	s := t.stmt(query)
	if t.err != nil {
		return 0
	}
	res, err := s.ExecContext(t.ctx, args...)
	if err != nil {
		t.err = err
		return 0
	}
	n, err := res.RowsAffected()
	t.err = err
	return n
}

// each calls scan for each row of a query.
func (t *tx) each(query string, scan func(scanner) error, args ...any) {
	s := t.stmt(query)
	if t.err != nil {
		return
	}
	rows, err := s.QueryContext(t.ctx, args...)
	if err != nil {
		t.err = err
		return
	}
	t.err = scanAll(rows, scan)
}

// tx runs fn in a writing transaction: all of it happens, or nothing. It waits
// for its turn until ctx ends, and then runs to its end.
func (d *DB) tx(ctx context.Context, fn func(*tx) error) (err error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return d.fault(context.Cause(ctx), "write the database")
	}
	if err := ctx.Err(); err != nil {
		return d.fault(err, "write the database")
	}
	t := &tx{d: d, ctx: context.WithoutCancel(ctx)}
	if t.exec("BEGIN IMMEDIATE"); t.err != nil {
		return d.fault(t.err, "write the database")
	}
	if err = fn(t); err == nil {
		err = t.err
	}
	if err == nil {
		t.exec("COMMIT")
		err = t.err
	}
	if err == nil {
		return nil
	}
	t.err = nil
	t.exec("ROLLBACK") // fails where SQLite has rolled back by itself
	return d.fault(err, "write the database")
}

const (
	noSpaceHint  = "nothing that was acknowledged is lost; free some space, for example with: coppice gc"
	readOnlyHint = "give coppice a home that it can write: COPPICE_HOME=DIR coppice ls"
	corruptHint  = "the layers are untouched; restore the database from a backup, or begin anew in another home: COPPICE_HOME=DIR coppice create"
)

// fault gives an error of SQLite or the system the kind that people need; faults
// pass.
func (d *DB) fault(err error, format string, args ...any) error {
	var f *fault.Error
	if err == nil || errors.As(err, &f) {
		return err
	}
	f = fault.New(fault.KindOf(err), format, args...).Because(err)
	var se *sqlite.Error
	if errors.As(err, &se) {
		f.Kind = d.kindOf(se)
	}
	switch f.Kind {
	case fault.NoSpace:
		f.Hint = noSpaceHint
	case fault.ReadOnly, fault.Denied, fault.NotFound:
		f.Hint = readOnlyHint
	case fault.Corrupt:
		f.Hint = corruptHint
	case fault.Conflict:
		f.Hint = "another program uses " + d.path + "; see which with: fuser -v " + d.path
	case fault.Internal:
		if se != nil {
			f.Hint = "see what the system says with: dmesg | tail"
		}
	}
	return f
}

// kindOf says what a result code of SQLite means for people.
func (d *DB) kindOf(e *sqlite.Error) fault.Kind {
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return fault.NoSpace
	case sqlite3.SQLITE_READONLY:
		return fault.ReadOnly
	case sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return fault.Denied
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
		return fault.Corrupt
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fault.Conflict
	case sqlite3.SQLITE_INTERRUPT:
		return fault.Cancelled
	case sqlite3.SQLITE_CONSTRAINT:
		if c := e.Code(); c == sqlite3.SQLITE_CONSTRAINT_UNIQUE || c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY {
			return fault.Exists
		}
		return fault.Internal
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN:
		// SQLite does not say why; the file system does.
		if k := fault.KindOf(tryWrite(filepath.Dir(d.path))); k != "" {
			return k
		}
	}
	return fault.Internal
}

// tryWrite writes a little to dir, and gives the error that it met.
func tryWrite(dir string) (err error) {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
