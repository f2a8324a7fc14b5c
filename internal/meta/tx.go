package meta

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coppice-dev/coppice/internal/fault"
)

type scanner interface{ Scan(...any) error }

// link is a connection with the statements that were prepared on it. One
// goroutine uses it at a time.
type link struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

func newLink(ctx context.Context, db *sql.DB) (*link, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &link{conn: c, stmts: map[string]*sql.Stmt{}}, nil
}

// stmt returns the prepared form of a statement.
func (l *link) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := l.stmts[query]; s != nil {
		return s, nil
	}
	s, err := l.conn.PrepareContext(ctx, query)
	if err == nil {
		l.stmts[query] = s
	}
	return s, err
}

func (l *link) exec(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, err := l.stmt(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

// each calls scan for each row of a query.
func (l *link) each(ctx context.Context, query string, scan func(scanner) error, args ...any) error {
	s, err := l.stmt(ctx, query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	return scanAll(rows, scan)
}

func (l *link) close() error {
	errs := make([]error, 0, len(l.stmts)+1)
	for _, s := range l.stmts {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, l.conn.Close())...)
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

// reading runs fn on a reading connection. fn must not call reading: the number of connections is limited.
func (d *DB) reading(ctx context.Context, fn func(*link) error) (err error) {
	var l *link
	select {
	case l = <-d.readers:
		defer func() { d.readers <- l }()
	case <-ctx.Done():
		return d.fault(context.Cause(ctx), "read the database")
	}
	if l == nil {
		if l, err = newLink(ctx, d.r); err != nil {
			return d.fault(err, "read the database")
		}
	}
	err = fn(l)
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		err = errors.Join(err, l.close())
		l = nil
	}
	return d.fault(err, "read the database")
}

// rows runs a reading query and calls scan for each row.
func (d *DB) rows(ctx context.Context, query string, scan func(scanner) error, args ...any) error {
	return d.reading(ctx, func(l *link) error { return l.each(ctx, query, scan, args...) })
}

// view runs several reads on one state of the database. It keeps its first error, so that its steps need no error
// handling.
type view struct {
	*link
	ctx context.Context //nolint:containedctx // lives as long as one call of DB.view
	err error
}

// each calls scan for each row of a query.
func (v *view) each(query string, scan func(scanner) error, args ...any) {
	if v.err == nil {
		v.err = v.link.each(v.ctx, query, scan, args...)
	}
}

// view runs fn on one state of the database.
func (d *DB) view(ctx context.Context, fn func(*view)) error {
	return d.reading(ctx, func(l *link) error {
		// A canceled statement may have been executed, so these two are never canceled.
		always := context.WithoutCancel(ctx)
		if _, err := l.exec(always, "BEGIN"); err != nil {
			return err
		}
		v := &view{link: l, ctx: ctx}
		fn(v)
		if _, err := l.exec(always, "ROLLBACK"); err != nil {
			return errors.Join(driver.ErrBadConn, v.err, err) // the connection is not used again
		}
		return v.err
	})
}

// tx is a change. It keeps its first error, so that its steps need no error handling.
type tx struct {
	d   *DB
	ctx context.Context //nolint:containedctx // lives as long as one call of DB.tx
	err error
}

// exec runs a statement and returns how many rows it changed.
func (t *tx) exec(query string, args ...any) int64 {
	if t.err != nil {
		return 0
	}
	res, err := t.d.writer.exec(t.ctx, query, args...)
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
	if t.err == nil {
		t.err = t.d.writer.each(t.ctx, query, scan, args...)
	}
}

// tx runs fn in a writing transaction, which is applied completely or not at all. It waits for its turn until ctx is
// canceled; once started, it completes.
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
	t.exec("ROLLBACK") // fails if SQLite has already rolled back
	return d.fault(err, "write the database")
}

const (
	noSpaceHint  = "no acknowledged data is lost; free space, for example with: coppice system gc"
	readOnlyHint = "use a writable home: COPPICE_HOME=DIR coppice ls"
	corruptHint  = "the layers are not affected; restore the database from a backup, or start again in another home: " +
		"COPPICE_HOME=DIR coppice create"
)

// fault converts an error of SQLite or the system into a fault; faults are returned unchanged.
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
		f.Hint = "another program uses " + d.path + "; see which one: fuser -v " + d.path
	case fault.Internal:
		if se != nil {
			f.Hint = "see the kernel log: dmesg | tail"
		}
	}
	return f
}

// kindOf returns the kind of fault for a result code of SQLite.
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
		// SQLite does not report the reason; a write to the file system does.
		if k := fault.KindOf(tryWrite(filepath.Dir(d.path))); k != "" {
			return k
		}
	}
	return fault.Internal
}

// tryWrite writes a little to dir, and returns the error.
func tryWrite(dir string) (err error) {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}
