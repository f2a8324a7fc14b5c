// Package meta is the database of sandboxes, snapshots, routes and layers: one SQLite file in WAL mode. Every
// change is one transaction. Committed transactions survive the death of every process (synchronous=NORMAL:
// after a power loss the newest transactions may be missing, but never half there; MarkFinalized waits until the
// disk has everything up to itself). Only engine imports it; it imports timeline, seal, vfs, fault and
// client/wire.
package meta

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite" // also the driver of that name
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// DB is an open database. All methods are safe for concurrent use and return faults. A change that has started
// completes even if its context is canceled meanwhile.
type DB struct {
	// Now is the clock for the times that the database records itself. It may only be set before the first use.
	Now func() time.Time

	fs   vfs.FS
	path string
	made bool
	key  secretbox.Key // encrypts private values
	w, r *sql.DB       // one writing connection, several reading ones

	turn    chan struct{} // holds a token while a change runs; guards writer, closed
	writer  *link
	closed  bool
	readers chan *link // unused connections; nil: not made yet
}

// maxReaders is the maximum number of concurrent reads.
const maxReaders = 4

// reserved is the space that an open database reserves for its log, in bytes: SQLite empties the log when it
// has grown to 4 MiB.
const reserved = 6 << 20

// checkBelow is the size up to which Open checks the whole structure of the file, which takes about 10 ms. Check does
// so for any size.
const checkBelow = 4 << 20

// Open opens the database at path, whose directory exists, or creates it. It returns Version for a database of
// another version, Corrupt for a damaged one, ReadOnly, NoSpace or Denied; the file is not changed then. The key of
// encrypted values is a file beside the database, which is created if nothing is encrypted yet.
func Open(ctx context.Context, path string) (*DB, error) { return OpenOn(ctx, vfs.OS(), path) }

// OpenOn is Open on a file system, through which everything is written except what SQLite writes.
func OpenOn(ctx context.Context, fsys vfs.FS, path string) (_ *DB, err error) {
	d := &DB{Now: time.Now, fs: fsys, path: path, turn: make(chan struct{}, 1), readers: make(chan *link, maxReaders)}
	for range maxReaders {
		d.readers <- nil
	}
	size, err := d.preflight()
	if errors.Is(err, os.ErrNotExist) {
		d.made = true
		err = create(ctx, fsys, path)
	}
	if err != nil {
		return nil, d.openFault(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.w, err = sql.Open("sqlite",
		dsn(path, "rw", "&_pragma=synchronous(normal)&_pragma=temp_store(memory)")); err != nil {
		return nil, d.openFault(err)
	}
	if d.r, err = sql.Open("sqlite", dsn(path, "rw", "&_pragma=query_only(1)")); err != nil {
		return nil, d.openFault(err)
	}
	if d.writer, err = newLink(ctx, d.w); err != nil {
		return nil, d.openFault(err)
	}
	if err := d.inspect(ctx, size); err != nil {
		return nil, d.openFault(err)
	}
	if err := d.openKey(ctx); err != nil {
		return nil, d.openFault(err)
	}
	if err := d.reserve(); err != nil {
		return nil, d.openFault(err)
	}
	return d, nil
}

// openFault is fault, for errors of Open. SQLite only reads the file then, so an error in SQL means an invalid header
// or schema.
func (d *DB) openFault(err error) error {
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code() == sqlite3.SQLITE_ERROR {
		return fault.New(fault.Corrupt, "open %s", d.path).Because(err).WithHint(corruptHint)
	}
	return d.fault(err, "open %s", d.path)
}

// Made reports whether Open created the database: no layer has a record then, so existing layers are not
// garbage but orphans.
func (d *DB) Made() bool { return d.made }

func dsn(path, mode, more string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?mode=" + mode +
		"&_pragma=busy_timeout(10000)&_pragma=foreign_keys(1)" + more
}

// preflight finds problems that SQLite would not report or would take for an empty database, and returns the
// size of the file.
func (d *DB) preflight() (int64, error) {
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() == 0 {
		return 0, fault.New(fault.Corrupt, "%s is empty", d.path).WithHint(corruptHint)
	}
	return st.Size(), nil
}

// create makes a database beside path and renames it to path, so that an incomplete one is never visible.
func create(ctx context.Context, fsys vfs.FS, path string) (err error) {
	tmp := path + ".new"
	if err := vfs.Remove(fsys, tmp+"-journal"); err != nil {
		return err
	}
	if err := vfs.NoteUnsynced(fsys, tmp, nil); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, vfs.Remove(fsys, tmp))
		}
	}()
	db, err := sql.Open("sqlite", dsn(tmp, "rw", "&_pragma=synchronous(full)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	for _, s := range []string{"BEGIN IMMEDIATE", schema, setApplicationID, setUserVersion, "COMMIT",
		"PRAGMA journal_mode=wal"} {
		if _, err = db.ExecContext(ctx, s); err != nil {
			break
		}
	}
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := vfs.Sync(fsys, tmp); err != nil {
		return err
	}
	if err := vfs.Rename(fsys, tmp, path); err != nil {
		return err
	}
	return vfs.Sync(fsys, filepath.Dir(path))
}

// inspect checks that the file has a known version and is not damaged.
func (d *DB) inspect(ctx context.Context, size int64) error {
	pragma := func(name string) (v int64, err error) {
		err = d.writer.conn.QueryRowContext(ctx, "PRAGMA "+name).Scan(&v)
		return v, err
	}
	app, err := pragma("application_id")
	if err != nil {
		return err
	}
	v, err := pragma("user_version")
	switch {
	case err != nil:
		return err
	case app != applicationID:
		return fault.New(fault.Version, "%s is not a Coppice database", d.path).
			WithHint("move it away, or use another home: COPPICE_HOME=DIR coppice ls")
	case v > schemaVersion:
		return fault.New(fault.Version, "unsupported version of %s: %d; this build reads version "+
			"%d", d.path, v, schemaVersion).
			WithHint("update with: go install github.com/coppice-dev/coppice/cmd/coppice@latest; or use another home: " +
				"COPPICE_HOME=DIR coppice ls")
	case v >= 1 && v < schemaVersion:
		if err := d.upgrade(ctx, int(v)); err != nil {
			return err
		}
	case v != schemaVersion:
		return fault.New(fault.Version, "unsupported version of %s: %d; this build reads version "+
			"%d", d.path, v, schemaVersion).
			WithHint("use the version of coppice that created it, or another home: COPPICE_HOME=DIR coppice ls")
	}
	if err := d.checkSchema(ctx, schema, schemaVersion); err != nil || size > checkBelow {
		return err
	}
	return d.check(ctx, d.writer.conn)
}

// upgrade changes an undamaged database of an earlier version to this version, by adding tables, in one transaction.
func (d *DB) upgrade(ctx context.Context, from int) (err error) {
	if err := d.checkSchema(ctx, strings.Join(schemas()[:from], ""), from); err != nil {
		return err
	}
	if err := d.check(ctx, d.writer.conn); err != nil {
		return err
	}
	for _, s := range []string{"BEGIN IMMEDIATE", strings.Join(schemas()[from:], ""), setUserVersion, "COMMIT"} {
		if _, err = d.writer.conn.ExecContext(ctx, s); err != nil {
			_, rerr := d.writer.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			return errors.Join(err, rerr)
		}
	}
	return nil
}

// bare returns a statement without comments, with one space for each run of them: the file stores statements
// as they were typed when it was created.
func bare(sql string) string {
	var b strings.Builder
	for line := range strings.Lines(sql) {
		line, _, _ = strings.Cut(line, "--")
		for _, word := range strings.Fields(line) {
			b.WriteString(word)
			b.WriteByte(' ')
		}
	}
	return strings.ReplaceAll(strings.TrimSpace(b.String()), " ;", ";")
}

// checkSchema returns an error if the schema is not, except for comments, that of this version: then nothing else can
// be trusted.
func (d *DB) checkSchema(ctx context.Context, schema string, version int) error {
	rows, err := d.writer.conn.QueryContext(ctx,
		"SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
	if err != nil {
		return err
	}
	n := 0
	err = scanAll(rows, func(s scanner) error {
		var made string
		if err := s.Scan(&made); err != nil {
			return err
		}
		n++
		if strings.Contains(bare(schema), bare(made)+";") {
			return nil
		}
		return fault.New(fault.Corrupt, "%s is damaged: its schema is not that of version %d", d.path, version).
			WithHint(corruptHint)
	})
	if err == nil && n != strings.Count(schema, "\nCREATE ") {
		err = fault.New(fault.Corrupt, "%s is damaged: its schema is incomplete", d.path).WithHint(corruptHint)
	}
	return err
}

// Check reads the whole database and finds damage of its structure. It returns Corrupt for a damaged database.
func (d *DB) Check(ctx context.Context) error {
	return d.reading(ctx, func(l *link) error {
		if err := d.check(ctx, l.conn); err != nil {
			return err
		}
		return l.each(ctx, "SELECT \"table\" FROM pragma_foreign_key_check LIMIT 1", func(s scanner) error {
			var table string
			if err := s.Scan(&table); err != nil {
				return err
			}
			return fault.New(fault.Corrupt, "%s is damaged: a row of %s refers to a missing row", d.path, table).
				WithHint(corruptHint)
		})
	})
}

func (d *DB) check(ctx context.Context, c *sql.Conn) error {
	var says string
	if err := c.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&says); err != nil {
		return err
	}
	if says != "ok" {
		return fault.New(fault.Corrupt, "%s is damaged: %s", d.path, says).WithHint(corruptHint)
	}
	return nil
}

// Close waits for the running reads and the running change, and closes the database. It may be called twice; other
// methods then fail.
func (d *DB) Close() error {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	for range maxReaders {
		if l := <-d.readers; l != nil {
			errs = append(errs, l.close())
		}
	}
	for range maxReaders {
		d.readers <- nil // its use fails instead of waiting
	}
	if d.r != nil {
		errs = append(errs, d.r.Close())
	}
	if d.writer != nil {
		errs = append(errs, d.writer.close())
	}
	if d.w != nil { // last, so that it empties the log
		errs = append(errs, d.w.Close())
	}
	return errors.Join(errs...)
}

// Flush waits until all committed transactions are on the disk. The log is flushed here and not by SQLite, so that no
// change waits for it. A concurrent checkpoint flushes what it moves.
func (d *DB) Flush() error {
	err := vfs.Sync(d.fs, d.path+"-wal")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return d.fault(err, "flush the database")
}
