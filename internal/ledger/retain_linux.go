package ledger

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// Archive compresses the segments of a sandbox whose records are all older than before, except the last segment,
// which is still appended to. They can still be read and verified. It returns the number of records that it
// compressed, and records that under the name of the sandbox.
func (l *Ledger) Archive(
	ctx context.Context, id format.Sandbox, name string, before time.Time,
) (records int64, err error) {
	err = l.do(ctx, "archive the records of a sandbox", func() error {
		h, ok := l.state.heads[id]
		if !ok || h.removed {
			return fault.New(fault.NotFound, "records of %s not found", id)
		}
		if err := l.fold(); err != nil {
			return err
		}
		old, next, err := l.archivable(id, h, before)
		if err != nil || len(old) == 0 {
			return err
		}
		for _, first := range old {
			if err := l.compress(segment(id, first)); err != nil {
				return err
			}
		}
		records = next - old[0]
		if err := l.appendNow(
			Draft{Sandbox: id, Name: name, Observer: format.ByDaemon,
				Body: &format.Archive{First: old[0], Last: next - 1}}); err != nil {
			return err
		}
		for _, first := range old {
			if err := l.unlink(segment(id, first)); err != nil {
				return err
			}
		}
		return l.sync(dirSandboxes + "/" + string(id))
	})
	return records, err
}

// archivable returns the segments that can be archived, and the first record after them.
func (l *Ledger) archivable(id format.Sandbox, h head, before time.Time) (old []int64, next int64, err error) {
	all, err := segments(l.path, id)
	if err != nil {
		return nil, 0, err
	}
	for i, first := range all {
		if first >= h.first || i+1 == len(all) {
			break
		}
		b, err := l.read(segment(id, first))
		if err != nil {
			return nil, 0, err
		}
		if b == nil {
			continue // archived before
		}
		lines := bytes.Split(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\n'})
		last, err := format.Parse(lines[len(lines)-1])
		if err != nil {
			return nil, 0, err
		}
		if !last.Time.Before(before) {
			break
		}
		old, next = append(old, first), all[i+1]
	}
	return old, next, nil
}

// compress writes a segment's archive, which has all records of the segment.
func (l *Ledger) compress(name string) error {
	plain, err := l.read(name)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(plain)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return err
	}
	return l.replace(strings.TrimSuffix(name, plainEnd)+archiveEnd, b.Bytes())
}

// Remove removes all records and blobs of a sandbox, and records that among those of format.Host. The leaves of the
// log stay, so everything else can still be verified. Nothing can be appended for the sandbox afterwards.
func (l *Ledger) Remove(ctx context.Context, id format.Sandbox) error {
	return l.do(ctx, "remove the records of a sandbox", func() error {
		h, ok := l.state.heads[id]
		if !ok || h.removed {
			return fault.New(fault.NotFound, "records of %s not found", id)
		}
		if id == format.Host {
			return fault.New(fault.Invalid, "cannot remove the records of the host")
		}
		err := l.appendNow(Draft{Sandbox: format.Host, Name: string(format.Host), Observer: format.ByDaemon,
			Body: &format.Delete{Ledger: true, Sandbox: string(id), Records: h.seq, Head: h.hash.String()}})
		if err == nil {
			err = l.fold()
		}
		if err == nil {
			l.captures.drop(func(c *capture) bool { return c.id == id })
			err = l.wipe(id)
		}
		l.broken = l.broken || err != nil
		return err
	})
}

// wipe removes the files of a sandbox.
func (l *Ledger) wipe(id format.Sandbox) error {
	for _, top := range []string{dirBlobs, dirSandboxes} {
		dir := top + "/" + string(id)
		names, err := l.names(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range names {
			if err := l.unlink(dir + "/" + e.Name()); err != nil {
				return err
			}
		}
		err = l.in(dir, func(d int, base string) error {
			if err := ignore(l.fs.Rmdir(d, base), unix.ENOENT); err != nil {
				return err
			}
			return l.fs.Sync(d)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
